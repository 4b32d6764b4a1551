"""`lipt top`: a whole coordinator on one screen, on which a name is text and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from lipt.common.states import LearnerState
from lipt.common.text import printable
from lipt.trainer.cli.display.output import in_background
from lipt.trainer.cli.display.runs import LEARNER_COLUMNS, Pace, learner_cells, state_line
from lipt.trainer.views import RunView, ServiceView, WorkerView
from lipt.trainer.writing.formatting import table_lines


class Screen(Console):
    """A console on which a worker called "[red]" is a name, and no name steers the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Printable form of a text that is printed, or stands in a table."""
        return super().render_str(printable(text), **options)


def styled(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


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
            title, *lines = frame_lines(address, view, room, left)
            frame = [styled(title, "bold"), styled("".join(notices[-1:]), "yellow")]
            live.update(Group(*frame, *map(styled, lines)), refresh=True)


def frame_lines(
    address: str, view: ServiceView | None, room: int, left: dict[str, str] | None = None
) -> list[str]:
    """A title and tables of up to `room` rows each; `left` has the time that runs still take."""
    if view is None:
        return [f"lipt {address}", "waiting for the coordinator's first answer"]
    busy = sum(bool(worker.assignment) for worker in view.workers)
    title = (
        f"lipt {address}  {view.num_runs} runs  {view.num_workers} workers ({busy} busy)  "
        f"queue {len(view.computations)}  {f'{view.now:%H:%M:%S} UTC' if view.now else ''}"
    )
    # The newest run that is under way, or else the newest.
    run = next((run for run in view.runs if not run.ended), view.runs[0] if view.runs else None)
    return [
        title.rstrip(),
        *_runs(view, room, left or {}),
        "",
        *(_learners(run, room) if run is not None else []),
        *_workers(view, room),
        *_queue(view, room),
    ]


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], room: int, number: int, what: str
) -> list[str]:
    shown = rows[:room]
    more = [f"and {number - len(shown)} more {what}"] if number > len(shown) else []
    return [*table_lines(header, shown), *more]


def _runs(view: ServiceView, room: int, left: dict[str, str]) -> list[str]:
    if not view.runs:
        return ["There is no run yet. Start one: lipt run start"]
    rows = []
    for run in view.runs:
        remaining = left.get(run.run_id, "").removesuffix(" left") or "-"
        state = state_line(run).removeprefix(f"run {run.label}: ")
        rows.append((run.label, remaining, run.config.model, state))
    return _table(("run", "left", "model", "state"), rows, room, len(rows), "runs")


def _learners(run: RunView, room: int) -> list[str]:
    # Those in training before the others.
    by_interest = sorted(run.learners, key=lambda one: one.state is not LearnerState.LEASED)
    shown = sorted(by_interest[:room], key=lambda one: one.index)
    rows = [learner_cells(learner, run.config.learners.num_steps) for learner in shown]
    table = _table(LEARNER_COLUMNS, rows, room, len(run.learners), "learners") if rows else []
    return [state_line(run), *table]


def _workers(view: ServiceView, room: int) -> list[str]:
    if not view.workers:
        return ["There is no worker. Start one: lipt-worker --coordinator HOST:PORT"]
    rows = []
    for one in view.workers:
        heard, valid = f"{one.seconds_since_heard:.0f} s ago", _certificate(one, view)
        named = (one.name, one.device, one.assignment or "-")
        rows.append((*named, heard, valid, one.idle_reason or "-"))
    header = ("worker", "device", "learner", "heard", "certificate", "idle because it")
    return ["", *_table(header, rows, room, view.num_workers, "workers")]


def _certificate(worker: WorkerView, view: ServiceView) -> str:
    if worker.certificate_expires_at is None or view.now is None:
        return "-"
    days = (worker.certificate_expires_at - view.now) / timedelta(days=1)
    return f"{days:.0f} days left" if days >= 0 else "expired"


def _queue(view: ServiceView, room: int) -> list[str]:
    if not view.computations:
        return []
    names = {run.run_id: run.label for run in view.runs}
    rows = []
    for one in view.computations:
        run = names.get(one.run_id, one.run_id) or "-"
        since = f"{'computed' if one.computing else 'waits'} for {one.seconds:.0f} s"
        asked_by = str(one.num_callers or "its run")
        rows.append((one.lane, one.job, run, since, str(one.progress or "-"), asked_by))
    header = ("queue", "job", "run", "", "progress", "asked by")
    return ["", *_table(header, rows, room, len(rows), "jobs")]
