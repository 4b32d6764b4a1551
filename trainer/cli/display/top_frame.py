"""One screenful of `lipt top`, cut to the size of the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from rich.console import Group, RenderableType
from rich.table import Table

from lipt.common.states import LearnerState, RunState
from lipt.common.text import printable
from lipt.trainer.cli.display.progress import learner_status, learner_style, shown_learners
from lipt.trainer.cli.display.screen import styled
from lipt.trainer.views import (
    ComputationView,
    LearnerView,
    RunView,
    ServiceView,
    WorkerView,
)
from lipt.trainer.writing.formatting import format_percent


class Pane(StrEnum):
    """What the lower part of the screen shows."""

    LEARNERS = "learners"
    WORKERS = "workers"
    QUEUE = "queue"


@dataclass(frozen=True)
class Choice:
    """What is looked at."""

    run_id: str = ""
    pane: Pane = Pane.LEARNERS
    asked: str = ""
    quits: bool = False


@dataclass(frozen=True)
class Cancelling:
    """A run that the person wants cancelled."""

    run_id: str


def chosen_run(view: ServiceView | None, choice: Choice) -> RunView | None:
    """The run that is looked at; the newest where the chosen one is shown no more."""
    if view is None or not view.runs:
        return None
    return next((run for run in view.runs if run.run_id == choice.run_id), view.runs[0])


def after_key(
    choice: Choice, key: str, view: ServiceView | None
) -> tuple[Choice, Cancelling | None]:
    """What is looked at after a key, and what is to be done."""
    if choice.asked:
        wanted = Cancelling(choice.asked) if key in ("y", "Y") else None
        return replace(choice, asked=""), wanted
    run = chosen_run(view, choice)
    match key:
        case "q" | "Q":
            return replace(choice, quits=True), None
        case "tab":
            panes = list(Pane)
            return replace(choice, pane=panes[(panes.index(choice.pane) + 1) % len(panes)]), None
        case "c" if run is not None and not run.ended:
            return replace(choice, asked=run.run_id), None
        case "down" | "j" | "up" | "k" if view is not None and run is not None:
            step = 1 if key in ("down", "j") else -1
            place = min(max(view.runs.index(run) + step, 0), len(view.runs) - 1)
            return replace(choice, run_id=view.runs[place].run_id), None
        case _:
            return choice, None


# Columns that go first where a terminal is narrow are shown from these widths on.
SMALL, NARROW, WIDE = 60, 80, 110


@dataclass(frozen=True)
class Column:
    """A column: its head, what stands in it, and from which width on it is shown."""

    head: str
    cell: Callable[..., str]
    from_width: int = 0
    right: bool = False


def table_of(
    columns: Sequence[Column], rows: Sequence[object], styles: Sequence[str], width: int
) -> Table:
    """A row for each of `rows`, in its style, of those columns that there is room for."""
    shown = [column for column in columns if width >= column.from_width]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in shown:
        table.add_column(
            column.head, justify="right" if column.right else "left", no_wrap=True, overflow="fold"
        )
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*(styled(column.cell(row)) for column in shown), style=style)
    return table


def more(number: int, what: str) -> list[RenderableType]:
    """A line about what there was no room for."""
    return [styled(f"and {count(number, 'more ' + what)}", "dim")] if number > 0 else []


def count(number: int, what: str) -> str:
    """A number of things."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def cut(line: str, width: int) -> str:
    """One line of the screen."""
    line = printable(line)
    return line if len(line) <= width else f"{line[: width - 1]}…"


_LEVELS = "▁▂▃▄▅▆▇█"
_SECONDS_A_DAY = 86_400.0


def learners_pane(run: RunView | None, room: int, width: int) -> Sequence[RenderableType]:
    """The learners of the run that is looked at, and its soup while it grows."""
    if run is None:
        return [styled("There is no run yet. Start one: lipt run start")]
    head = f"learners of {run.label}"
    if curve := soup_curve(run):
        head += f"   soup {curve} {soup_accuracy(run)}"
    head = cut(head, width)
    if not run.learners:
        return [styled(head, "bold"), styled(run.message or "none yet", "dim")]
    columns = (
        Column("learner", lambda one: str(one.index), right=True),
        Column("worker", lambda one: one.worker or "-"),
        Column("phase", _phase),
        Column("step", _steps),
        Column("loss", lambda one: f"{one.loss:.3f}" if one.step else "-", SMALL, right=True),
        Column(
            "validation",
            lambda one: format_percent(one.ingredient.accuracy) if one.ingredient else "-",
            SMALL,
            right=True,
        ),
        Column("density", lambda one: f"{one.density:.3f}", NARROW, right=True),
        Column("status", learner_status, NARROW),
        Column("device", lambda one: one.device or "-", WIDE),
    )
    fits = len(run.learners) <= room
    shown = shown_learners(run.learners, room if fits else max(room - 1, 1))
    styles = [learner_style(learner) for learner in shown]
    return [
        styled(head, "bold"),
        table_of(columns, shown, styles, width),
        *more(len(run.learners) - len(shown), "learner"),
    ]


def soup_curve(run: RunView) -> str:
    """The soup's accuracy after each learner that was offered, as one character each."""
    parts = [learner.ingredient for learner in run.learners if learner.ingredient is not None]
    values = [part.soup_accuracy for part in sorted(parts, key=lambda part: part.position)]
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    top = len(_LEVELS) - 1
    return "".join(
        _LEVELS[round(top * (value - low) / (high - low)) if high > low else top]
        for value in values
    )


def _phase(learner: LearnerView) -> str:
    return learner.phase.value if learner.state is LearnerState.LEASED else learner.state.value


def _steps(learner: LearnerView) -> str:
    total = learner.num_steps
    if not total:
        return str(learner.step)
    filled = round(10 * min(learner.step / total, 1.0))
    return f"{'█' * filled}{'░' * (10 - filled)} {learner.step}/{total}"


def workers_pane(view: ServiceView, room: int, width: int) -> Sequence[RenderableType]:
    """Who is there, with what, and what keeps them from it."""
    if not view.workers:
        return [
            styled("workers", "bold"),
            styled("There is none. Start one on each GPU: lipt-worker --coordinator HOST:PORT"),
        ]
    columns = (
        Column("worker", lambda one: one.name),
        Column("device", lambda one: one.device),
        Column("learner", lambda one: one.assignment or "-"),
        Column("heard", lambda one: f"{one.seconds_since_heard:.0f} s ago", right=True),
        Column("certificate", lambda one: _certificate(one, view.now), NARROW),
        Column("lipt", lambda one: one.versions.get("lipt", "-"), WIDE),
        Column("idle because it", lambda one: one.idle_reason or "-", WIDE),
    )
    shown = view.workers[: room if len(view.workers) <= room else max(room - 1, 1)]
    styles = ["yellow" if one.idle_reason else "" for one in shown]
    return [
        styled("workers", "bold"),
        table_of(columns, shown, styles, width),
        *more(view.num_workers - len(shown), "worker"),
    ]


def _certificate(worker: WorkerView, now: datetime | None) -> str:
    if worker.certificate_expires_at is None or now is None:
        return "-"
    days = (worker.certificate_expires_at - now).total_seconds() / _SECONDS_A_DAY
    return f"{days:.0f} days left" if days >= 0 else "expired"


def queue_pane(view: ServiceView, room: int, width: int) -> Sequence[RenderableType]:
    """What the coordinator computes, and what waits for it."""
    names = {run.run_id: run.label for run in view.runs}
    columns = (
        Column("queue", lambda one: one.lane),
        Column("job", lambda one: one.job),
        Column("run", lambda one: names.get(one.run_id, one.run_id) or "-"),
        Column("", lambda one: "computed" if one.computing else "waits"),
        Column("for", lambda one: f"{one.seconds:.0f} s", right=True),
        Column("progress", _doing),
        Column("asked by", lambda one: str(one.num_callers or "its run"), NARROW, right=True),
    )
    shown = view.computations[:room]
    if not shown:
        return [styled("queue", "bold"), styled("Nothing is computed.", "dim")]
    styles = ["cyan" if one.computing else "" for one in shown]
    return [
        styled("queue", "bold"),
        table_of(columns, shown, styles, width),
        *more(len(view.computations) - len(shown), "job"),
    ]


def _doing(computation: ComputationView) -> str:
    return str(computation.progress) if computation.progress is not None else "-"


def soup_accuracy(run: RunView) -> str:
    """Of the soup as it is by now."""
    if run.soup is not None:
        return format_percent(run.soup.soup_accuracy)
    growing = [learner.ingredient for learner in run.learners if learner.ingredient is not None]
    if not growing:
        return "-"
    return format_percent(max(growing, key=lambda part: part.position).soup_accuracy)


_HELP = "up/down run   tab learners, workers, queue   c cancel   q quit"
_STATE_STYLES = {
    RunState.READY: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "dim",
    RunState.HELD: "yellow",
}


@dataclass(frozen=True)
class Scene:
    """All that a frame shows."""

    address: str
    view: ServiceView | None
    choice: Choice
    left: dict[str, str]
    notice: str = ""


def render(scene: Scene, *, width: int, height: int) -> RenderableType:
    """The frame for a terminal of so many columns and lines."""
    view = scene.view
    head: list[RenderableType] = [styled(cut(_title(scene), width), "bold")]
    if scene.notice:
        head.append(styled(cut(scene.notice, width), "yellow"))
    if view is None:
        return Group(
            *head, styled("waiting for the coordinator's first answer"), _foot(scene, width)
        )
    room = max(height - len(head) - 6, 4)
    num_runs = min(len(view.runs), max(room // 3, 2))
    run = chosen_run(view, scene.choice)
    runs = _runs(scene, view, run, num_runs, width)
    below = _below(scene, view, run, room - num_runs, width)
    return Group(*head, runs, styled(""), *below, _foot(scene, width))


def render_once(scene: Scene, *, width: int) -> RenderableType:
    """Everything, of whatever height, for whoever only wants to know how it stands now."""
    view = scene.view
    if view is None:
        return Group(styled(_title(scene), "bold"))
    run = chosen_run(view, scene.choice)
    return Group(
        styled(_title(scene), "bold"),
        _runs(scene, view, run, len(view.runs), width),
        *(styled(""), *learners_pane(run, len(run.learners) if run else 0, width)),
        *(styled(""), *workers_pane(view, len(view.workers), width)),
        *(styled(""), *queue_pane(view, len(view.computations), width)),
    )


def _title(scene: Scene) -> str:
    view = scene.view
    if view is None:
        return f"lipt {scene.address}"
    busy = sum(bool(worker.assignment) for worker in view.workers)
    parts = [
        f"lipt {scene.address}",
        count(view.num_runs, "run"),
        f"{count(view.num_workers, 'worker')} ({busy} busy)",
        f"queue {len(view.computations)}",
    ]
    return "  ".join([*parts, *([f"{view.now:%H:%M:%S} UTC"] if view.now else [])])


def _foot(scene: Scene, width: int) -> RenderableType:
    if not scene.choice.asked:
        return styled(cut(_HELP, width), "dim")
    asked = scene.choice.asked
    runs = scene.view.runs if scene.view else ()
    name = next((run.label for run in runs if run.run_id == asked), asked)
    question = f"Cancel run {name}? What its workers do is lost. y: yes, any other key: no"
    return styled(cut(question, width))


def _runs(
    scene: Scene, view: ServiceView, chosen: RunView | None, num_runs: int, width: int
) -> Table:
    columns = (
        Column("run", lambda run: ("> " if run is chosen else "  ") + run.label),
        Column("state", lambda run: run.state.value),
        Column("progress", _progress, SMALL),
        Column("left", lambda run: scene.left.get(run.run_id, "") or "-", SMALL),
        Column("soup", soup_accuracy, right=True),
        Column("model", lambda run: run.config.model, NARROW),
        Column("message", lambda run: run.waiting or run.message or "-", WIDE),
    )
    at = view.runs.index(chosen) if chosen is not None else 0
    first = min(max(at - num_runs + 1, 0), max(len(view.runs) - num_runs, 0))
    shown = view.runs[first : first + num_runs]
    styles = [_STATE_STYLES.get(run.state, "cyan" if run is chosen else "") for run in shown]
    return table_of(columns, shown, styles, width)


def _progress(run: RunView) -> str:
    if run.state is RunState.TRAINING:
        done = sum(learner.state is LearnerState.DONE for learner in run.learners)
        out = sum(learner.state is LearnerState.LEASED for learner in run.learners)
        return f"{done}/{len(run.learners)} learners in, {out} out"
    if run.progress is not None and run.progress.activity and not run.ended:
        return str(run.progress)
    return "-"


def _below(
    scene: Scene, view: ServiceView, run: RunView | None, room: int, width: int
) -> Sequence[RenderableType]:
    match scene.choice.pane:
        case Pane.LEARNERS:
            return learners_pane(run, room, width)
        case Pane.WORKERS:
            return workers_pane(view, room, width)
        case Pane.QUEUE:
            return queue_pane(view, room, width)
