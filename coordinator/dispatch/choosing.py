"""Dispatch policy: which learner a free worker trains next, and why none, as pure decisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.quarantine import NOTHING_HELD_BACK, HeldBack
from lipt.coordinator.dispatch.redundancy import may_train, why_all_trained, why_unconfirmed
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.state.records import LearnerRecord, RunRecord


class Opening(NamedTuple):
    """A learner that may be handed out now."""

    run: RunRecord
    learner: LearnerRecord

    @property
    def key(self) -> AssignmentKey:
        """How workers name it."""
        return AssignmentKey(self.run.run_id, self.learner.index)


def openings(
    runs: Iterable[RunRecord],
    reserved: Collection[AssignmentKey] = (),
    held_back: HeldBack = NOTHING_HELD_BACK,
) -> Iterator[Opening]:
    """The learners that wait for a worker, in the order in which they go.

    The oldest run first, in it the lowest index. Those that seem to end their workers come last,
    and only when it is their turn to be tried. They are looked up as they are asked for: of ten
    thousand that wait, a single free worker needs to see one.

    Args:
        runs: all runs, oldest first.
        reserved: learners that are being handed out at this moment.
        held_back: learners in quarantine.
    """
    trials: list[Opening] = []
    for run in runs:
        if run.state is not RunState.TRAINING:
            continue
        for learner in run.learners:
            if learner.state is not LearnerState.QUEUED:
                continue
            opening = Opening(run, learner)
            if reserved and opening.key in reserved:
                continue
            if opening.key in held_back.learners:
                if opening.key in held_back.trials:
                    trials.append(opening)
                continue
            yield opening
    yield from trials


class Offers:
    """Openings that workers choose among, one worker after the other; none is taken twice."""

    def __init__(self, openings: Iterable[Opening]) -> None:
        self._seen: dict[AssignmentKey, Opening] = {}
        self._unseen = iter(openings)

    def __iter__(self) -> Iterator[Opening]:
        """Those that are left, in their order."""
        yield from tuple(self._seen.values())
        for opening in self._unseen:
            self._seen[opening.key] = opening
            yield opening

    def __bool__(self) -> bool:
        """Whether any is left."""
        return any(True for _ in self)

    def take(self, opening: Opening) -> None:
        """Offer it to nobody any more."""
        del self._seen[opening.key]


def waits(run: RunRecord) -> bool:
    """Whether a run has learners that wait for a worker."""
    # The last ones go last: of thousands one of them is found at once.
    return run.state is RunState.TRAINING and any(
        learner.state is LearnerState.QUEUED for learner in reversed(run.learners)
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
    openings: Iterable[Opening],
    *,
    alive: Callable[[], Collection[WorkerRecord]],
) -> Opening | None:
    """The learner that a free worker should train next: the first that it may.

    A learner that already failed on this worker is left to the others while any of them could
    take it; one that its party has trained is theirs (`redundancy`).

    Args:
        worker: who asks.
        openings: the learners that wait, in their order.
        alive: gives the workers that are there, with or without the one who asks; called only
            where a learner is not free to go to anybody.
    """
    # Of one run there may be thousands in a row.
    able: dict[str, bool] = {}
    for opening in openings:
        run, learner = opening
        if run.run_id not in able:
            able[run.run_id] = worker.can_run(run)
        if not able[run.run_id]:
            continue
        if learner.copies and not may_train(worker, run, learner, alive=alive()):
            continue
        if worker.worker_id in learner.failed_on and any(
            other.worker_id not in learner.failed_on and other.can_run(run) for other in alive()
        ):
            continue
        return opening
    return None
