"""Frame: one screenful of the service, cut to the terminal's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table

from lipt.common.states import LearnerState, RunState
from lipt.trainer.cli.display.screen import styled
from lipt.trainer.cli.display.top.choice import Choice, Pane, chosen_run
from lipt.trainer.cli.display.top.panes import (
    learners_pane,
    queue_pane,
    soup_accuracy,
    workers_pane,
)
from lipt.trainer.cli.display.top.tables import NARROW, SMALL, WIDE, Column, count, cut, table_of
from lipt.trainer.views import RunView, ServiceView

_HELP = "up/down run   tab learners, workers, queue   c cancel   q quit"
_STATE_STYLES = {
    RunState.READY: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "dim",
    RunState.HELD: "yellow",
}


@dataclass(frozen=True)
class Scene:
    """All that a frame shows.

    address: of the coordinator.
    view: how it stands; None before its first answer.
    choice: what is looked at.
    left: what is left of the stage that a run is in, in words, by the run's id.
    notice: what is wrong with the connection, or was just done; empty for nothing.
    """

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
