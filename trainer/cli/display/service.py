"""`lipt top`: a whole coordinator on one screen, on which a name is text and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lipt.common.states import LearnerState, RunState
from lipt.common.text import printable
from lipt.trainer.cli.display.output import in_background
from lipt.trainer.cli.display.runs import LEARNER_COLUMNS, Pace, learner_cells, state_line
from lipt.trainer.views import LearnerView, RunView, ServiceView, WorkerView
from lipt.trainer.writing.formatting import format_percent

Rows = Iterable[tuple[str, Sequence[str]]]


class Screen(Console):
    """A console on which a worker called "[red]" is a name, and no name steers the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """What is printed, or stands in a table, as a plain string."""
        return super().render_str(printable(text), **options)


def styled(text: str, style: str = "") -> Text:
    """One line of text in a style."""
    return Text(printable(text), style=style)


def table_of(header: Sequence[str], rows: Rows) -> Table:
    """A table of rows that are each a style and its cells."""
    table = Table(*header, box=None, pad_edge=False, header_style="bold")
    for style, cells in rows:
        table.add_row(*map(styled, cells), style=style)
    return table


_STYLES: dict[RunState | LearnerState, str] = {
    RunState.READY: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "dim",
    RunState.HELD: "yellow",
    LearnerState.LEASED: "cyan",
    LearnerState.FAILED: "red",
    LearnerState.DROPPED: "dim",
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
    return Group(
        styled(title, "bold"),
        *([styled(notice, "yellow")] if notice else []),
        *_runs(view, room, left or {}),
        styled(""),
        *(_learners(run, room) if run is not None else []),
        *_workers(view, room),
        *_queue(view, room),
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


def _learners(run: RunView, room: int) -> list[RenderableType]:
    num_steps, shown = run.config.learners.num_steps, shown_learners(run.learners, room)
    rows = [(_style(learner), learner_cells(learner, num_steps)) for learner in shown]
    table = [table_of(LEARNER_COLUMNS, rows)] if rows else []
    more = _more(len(run.learners) - len(rows), "learners")
    return [styled(state_line(run), "bold"), *table, *more]


def shown_learners(learners: Sequence[LearnerView], room: int) -> list[LearnerView]:
    """As many learners as there is room for: those in training before the others."""
    by_interest = sorted(learners, key=lambda one: one.state is not LearnerState.LEASED)
    return sorted(by_interest[:room], key=lambda one: one.index)


def _style(learner: LearnerView) -> str:
    if learner.ingredient is not None:
        return "green" if learner.ingredient.kept else "dim"
    return _STYLES.get(learner.state, "")


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


def _queue(view: ServiceView, room: int) -> list[RenderableType]:
    if not view.computations:
        return []
    names = {run.run_id: run.label for run in view.runs}
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
    more = _more(len(view.computations) - len(rows), "jobs")
    return [styled(""), table_of(header, rows), *more]


def _more(number: int, what: str) -> list[RenderableType]:
    return [styled(f"and {number} more {what}", "dim")] if number > 0 else []
