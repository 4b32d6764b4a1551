"""Dispatch policy: which learner a free worker trains next, as a pure decision."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.quarantine import NOTHING_HELD_BACK, HeldBack
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.state.records import RunRecord


def num_queued(
    runs: Iterable[RunRecord],
    reserved: Collection[AssignmentKey] = (),
    held_back: HeldBack = NOTHING_HELD_BACK,
) -> int:
    """How many learners wait for a worker, apart from those that are not to be handed out now."""
    return len(held_back.trials) + sum(
        learner.state is LearnerState.QUEUED and key not in reserved
        for run in runs
        if run.state is RunState.TRAINING
        for learner in run.learners
        if (key := AssignmentKey(run.run_id, learner.index)) not in held_back.learners
    )


def choose_learner(
    worker: WorkerRecord,
    runs: Iterable[RunRecord],
    *,
    alive: Collection[WorkerRecord],
    reserved: Collection[AssignmentKey] = (),
    held_back: HeldBack = NOTHING_HELD_BACK,
) -> AssignmentKey | None:
    """The learner that a free worker should train next.

    The oldest run first, in it the lowest index. A learner that already failed
    on this worker is left to the others while any of them could take it. Those that
    seem to end their workers come last.

    Args:
        worker: who asks.
        runs: all runs, oldest first.
        alive: the workers that are there, with or without the one who asks.
        reserved: learners that are being handed out at this moment.
        held_back: learners in quarantine.
    """
    trial: AssignmentKey | None = None
    for run in runs:
        if run.state is not RunState.TRAINING or not worker.can_run(run):
            continue
        for learner in run.learners:
            key = AssignmentKey(run.run_id, learner.index)
            if learner.state is not LearnerState.QUEUED or key in reserved:
                continue
            if worker.worker_id in learner.failed_on and any(
                other.worker_id not in learner.failed_on and other.can_run(run) for other in alive
            ):
                continue
            if key not in held_back.learners:
                return key
            if trial is None and key in held_back.trials:
                trial = key
    return trial
