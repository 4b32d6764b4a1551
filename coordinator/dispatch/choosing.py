"""Dispatch policy: which learner a free worker trains next, and why none, as pure decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.quarantine import NOTHING_HELD_BACK, HeldBack
from lipt.coordinator.dispatch.redundancy import may_train, why_all_trained, why_unconfirmed
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


def waits(run: RunRecord) -> bool:
    """Whether a run has learners that wait for a worker."""
    return run.state is RunState.TRAINING and any(
        learner.state is LearnerState.QUEUED for learner in run.learners
    )


def why_idle(worker: WorkerRecord, runs: Iterable[RunRecord]) -> str:
    """What keeps a free worker from the learners that wait, as a clause about it.

    Args:
        worker: who has nothing to do.
        runs: all runs, oldest first.

    Returns:
        Empty where it may train one of them, or none waits.
    """
    reasons = [_why_not(worker, run) for run in runs if waits(run)]
    return reasons[0] if reasons and all(reasons) else ""


def _why_not(worker: WorkerRecord, run: RunRecord) -> str:
    if refusal := worker.refusal(run):
        return f"cannot train run {run.name}, for it does not {refusal}"
    return why_all_trained(worker, run)


def why_waiting(
    run: RunRecord, *, alive: Collection[WorkerRecord], busy: Collection[str] = ()
) -> str:
    """What a run's learners wait for that no worker can give, as a clause about the workers.

    Args:
        run: any run.
        alive: the workers that are there.
        busy: ids of those that train something now.

    Returns:
        Empty where they can train its learners, where there are no workers at all, or where no
        learner waits.
    """
    if not alive or not waits(run):
        return ""
    if able := [worker for worker in alive if worker.can_run(run)]:
        return why_unconfirmed(run, able)
    shown = sorted(alive, key=lambda worker: (worker.worker_id in busy, worker.name))
    first = shown[0]
    others = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
    idle = "" if first.worker_id in busy else (" are idle, but" if others else " is idle, but")
    return (
        f"worker{'s' if others else ''} {first.name}{others}{idle} "
        f"{'do' if others else 'does'} not {first.refusal(run)}"
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
    on this worker is left to the others while any of them could take it; one that
    its party has trained is theirs (`redundancy`). Those that seem to end their
    workers come last.

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
            if not may_train(worker, run, learner, alive=alive):
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
