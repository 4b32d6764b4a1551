"""Panes: the learners of a run, the workers, the queue; each in so many lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType

from lipt.common.states import LearnerState
from lipt.trainer.cli.display.progress import learner_status
from lipt.trainer.cli.display.screen import styled
from lipt.trainer.cli.display.top.tables import (
    NARROW,
    SMALL,
    WIDE,
    Column,
    cut,
    more,
    table_of,
)
from lipt.trainer.views import (
    ComputationView,
    LearnerView,
    RunView,
    ServiceView,
    WorkerView,
)
from lipt.trainer.writing.formatting import format_percent

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
    shown = _by_interest(run.learners, room)
    styles = [_learner_style(learner) for learner in shown]
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


def _by_interest(learners: Sequence[LearnerView], room: int) -> list[LearnerView]:
    """As many as there is room for: those that are out before the others."""
    if len(learners) <= room:
        return list(learners)
    in_order = sorted(learners, key=lambda one: (one.state is not LearnerState.LEASED, one.index))
    return sorted(in_order[: max(room - 1, 1)], key=lambda one: one.index)


def _learner_style(learner: LearnerView) -> str:
    if learner.ingredient is not None:
        return "green" if learner.ingredient.kept else "dim"
    return {LearnerState.LEASED: "cyan", LearnerState.FAILED: "red"}.get(learner.state, "")


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
