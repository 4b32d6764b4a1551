"""Following a run to its end as lines or JSON, and a whole coordinator on one screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from rich.console import Group, RenderableType
from rich.live import Live

from lipt.common.states import LearnerState, RunState
from lipt.common.terminal import say
from lipt.trainer.cli.display.output import SILENCE_SECONDS, Say, in_background, print_json
from lipt.trainer.cli.display.progress import (
    LEARNER_COLUMNS,
    Pace,
    change_lines,
    heartbeat_line,
    learner_cells,
    learner_style,
    shown_learners,
    state_line,
)
from lipt.trainer.cli.display.screen import Screen, styled, table_of
from lipt.trainer.client.streams import while_going_on
from lipt.trainer.views import RunView, ServiceView, WorkerView
from lipt.trainer.writing.formatting import format_percent


class Display:
    """Shows a run as JSON, one object per change on a line.

    Times are seconds of one clock that never goes back.
    """

    def show(self, run: RunView, now: float) -> None:  # noqa: ARG002 - for `LineDisplay`
        """Show a changed run."""
        print_json(run)

    def tick(self, now: float) -> None:
        """Called when some time has passed."""


class LineDisplay(Display):
    """A line per state change and per learner, and one at least every ten seconds."""

    def __init__(self, say: Say, now: float) -> None:
        self._say = say
        self._run: RunView | None = None
        self._changed_at = now
        self._said_at = now
        self._pace = Pace()

    def show(self, run: RunView, now: float) -> None:
        """Say what changed; a learner's next step alone is not worth a line."""
        self._pace.observe(run, now)
        lines = change_lines(self._run, run)
        self._run = run
        self._changed_at = now
        for line in lines:
            self._say(line)
            self._said_at = now
        self.tick(now)

    def tick(self, now: float) -> None:
        """Say that the run goes on, when nothing was said for too long."""
        if now - self._said_at >= SILENCE_SECONDS:
            line = heartbeat_line(self._run, now - self._changed_at)
            self._say("; ".join(filter(None, (line, self._pace.words(now)))))
            self._said_at = now


def make_display(*, as_json: bool) -> Display:
    """JSON for scripts, or lines for people."""
    return Display() if as_json else LineDisplay(say, time.monotonic())


def follow(
    changes: Iterable[RunView], display: Display, *, check: Callable[[], None] | None = None
) -> RunView | None:
    """Show a run's changes until there are no more, or it does not go on by itself."""
    latest: RunView | None = None
    for item in in_background(while_going_on(changes)):
        now = time.monotonic()
        if item is None:
            display.tick(now)
        else:
            latest = item
            display.show(item, now)
        if check is not None:
            check()
    return latest


def render(run: RunView, room: int, *, left: str = "") -> Group:
    """The state's line with the time that is left, and a table of up to `room` learners."""
    lines: list[RenderableType] = [styled("; ".join(filter(None, (state_line(run), left))), "bold")]
    shown = shown_learners(run.learners, room)
    if shown:
        num_steps = run.config.learners.num_steps
        rows = ((learner_style(item), learner_cells(item, num_steps)) for item in shown)
        lines.append(table_of(LEARNER_COLUMNS, rows))
    if hidden := len(run.learners) - len(shown):
        lines.append(styled(f"and {hidden} more learners", "dim"))
    return Group(*lines)


def left_lines(run: RunView) -> list[str]:
    """What to say to somebody who no longer follows a run."""
    return [
        f"run {run.label} goes on without you.",
        f"Follow it again with: lipt run watch {run.label}",
        f"End it with: lipt run cancel {run.label}",
    ]


_STYLES = {
    RunState.READY: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "dim",
    RunState.HELD: "yellow",
}
_SECONDS_A_DAY = 86_400.0
# Lines of the screen besides the rows of its tables.
_FRAME_LINES = 14


def watch_service(
    address: str,
    views: Callable[[Callable[[str], object]], Iterable[ServiceView]],
    console: Screen | None = None,
) -> None:
    """Draw the service until Ctrl-C; `views` is given a function that takes its pauses in words."""
    console = console or Screen()
    notices: list[str] = []
    paces: dict[str, Pace] = {}
    view: ServiceView | None = None
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        for item in in_background(views(notices.append)):
            now = time.monotonic()
            if item is not None:
                view = item
                notices.clear()
                paces = {run.run_id: paces.get(run.run_id, Pace()) for run in view.runs}
                for run in view.runs:
                    paces[run.run_id].observe(run, now)
            left = {run_id: pace.words(now) for run_id, pace in paces.items()}
            room = max((console.height - _FRAME_LINES) // 4, 2)
            frame = render_service(address, view, room, left, "".join(notices[-1:]))
            live.update(frame, refresh=True)


def render_service(
    address: str,
    view: ServiceView | None,
    room: int,
    left: dict[str, str] | None = None,
    notice: str = "",
) -> RenderableType:
    """A frame of tables with up to `room` rows each; `left` has the time that runs still take."""
    left = left or {}
    if view is None:
        said = notice or "waiting for the coordinator's first answer"
        return Group(styled(f"lipt {address}", "bold"), styled(said))
    busy = sum(bool(worker.assignment) for worker in view.workers)
    title = (
        f"lipt {address}  {view.num_runs} runs  {view.num_workers} workers ({busy} busy)  "
        f"queue {len(view.computations)}  {f'{view.now:%H:%M:%S} UTC' if view.now else ''}"
    )
    # The newest run that is under way, or else the newest.
    run = next((run for run in view.runs if not run.ended), view.runs[0] if view.runs else None)
    names = {run.run_id: run.label for run in view.runs}
    return Group(
        styled(title, "bold"),
        *([styled(notice, "yellow")] if notice else []),
        *_runs(view, room, left),
        styled(""),
        *([render(run, room)] if run is not None else []),
        *_workers(view, room),
        *_queue(view, room, names),
    )


def _runs(view: ServiceView, room: int, left: dict[str, str]) -> list[RenderableType]:
    if not view.runs:
        return [styled("There is no run yet. Start one: lipt run start")]
    rows = [
        (
            _STYLES.get(run.state, "cyan"),
            (
                run.label,
                run.state.value,
                _progress(run),
                left.get(run.run_id, "").removesuffix(" left") or "-",
                _soup(run),
                run.config.model,
                run.waiting or run.message or "-",
            ),
        )
        for run in view.runs[:room]
    ]
    header = ("run", "state", "progress", "left", "soup", "model", "message")
    return [table_of(header, rows), *_more(len(view.runs) - room, "runs")]


def _progress(run: RunView) -> str:
    if run.state is RunState.TRAINING:
        done = sum(learner.state is LearnerState.DONE for learner in run.learners)
        out = sum(learner.state is LearnerState.LEASED for learner in run.learners)
        return f"{done}/{len(run.learners)} learners in, {out} out"
    if run.progress is not None and run.progress.activity and not run.ended:
        return str(run.progress)
    return "-"


def _soup(run: RunView) -> str:
    if run.soup is not None:
        return format_percent(run.soup.soup_accuracy)
    growing = [learner.ingredient for learner in run.learners if learner.ingredient is not None]
    latest = max(growing, key=lambda part: part.position, default=None)
    return "-" if latest is None else format_percent(latest.soup_accuracy)


def _workers(view: ServiceView, room: int) -> list[RenderableType]:
    if not view.workers:
        return [styled("There is no worker. Start one: lipt-worker --coordinator HOST:PORT")]
    rows = [
        (
            "yellow" if worker.idle_reason else "",
            (
                worker.name,
                worker.device,
                worker.assignment or "-",
                f"{worker.seconds_since_heard:.0f} s ago",
                _certificate(worker, view),
                worker.idle_reason or "-",
            ),
        )
        for worker in view.workers[:room]
    ]
    header = ("worker", "device", "learner", "heard", "certificate", "idle because it")
    return [styled(""), table_of(header, rows), *_more(view.num_workers - len(rows), "workers")]


def _certificate(worker: WorkerView, view: ServiceView) -> str:
    if worker.certificate_expires_at is None or view.now is None:
        return "-"
    days = (worker.certificate_expires_at - view.now).total_seconds() / _SECONDS_A_DAY
    return f"{days:.0f} days left" if days >= 0 else "expired"


def _queue(view: ServiceView, room: int, names: dict[str, str]) -> list[RenderableType]:
    if not view.computations:
        return []
    rows = [
        (
            "cyan" if one.computing else "",
            (
                one.lane,
                one.job,
                names.get(one.run_id, one.run_id) or "-",
                f"{'computed' if one.computing else 'waits'} for {one.seconds:.0f} s",
                str(one.progress or "-"),
                str(one.num_callers or "its run"),
            ),
        )
        for one in view.computations[:room]
    ]
    header = ("queue", "job", "run", "", "progress", "asked by")
    return [
        styled(""),
        table_of(header, rows),
        *_more(len(view.computations) - len(rows), "jobs"),
    ]


def _more(number: int, what: str) -> list[RenderableType]:
    return [styled(f"and {number} more {what}", "dim")] if number > 0 else []
