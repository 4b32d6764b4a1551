"""Dispatch policy: which learner a free worker trains next, and why none, as pure decisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.dispatch.quarantine import NOTHING_HELD_BACK, HeldBack
from lipt.coordinator.dispatch.redundancy import may_train, why_all_trained, why_unconfirmed
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.state.records import LearnerRecord, RunRecord


class Waiting(NamedTuple):
    """A run in training, and the indices of its learners that wait for a worker, ascending."""

    run: RunRecord
    indices: Sequence[int]

    def learners(self) -> Iterator[LearnerRecord]:
        """These learners."""
        return (self.run.learners[index] for index in self.indices)


class Opening(NamedTuple):
    """A learner that may be handed out now."""

    run: RunRecord
    learner: LearnerRecord

    @property
    def key(self) -> AssignmentKey:
        """The learner's key."""
        return AssignmentKey(self.run.run_id, self.learner.index)


def openings(
    waiting: Iterable[Waiting],
    reserved: Collection[AssignmentKey] = (),
    held_back: HeldBack = NOTHING_HELD_BACK,
) -> Iterator[Opening]:
    """The learners that wait for a worker, in the order in which they go, lazily.

    The oldest run first, in it the lowest index; learners in quarantine last, when due.

    Args:
        waiting: of all runs, oldest first.
        reserved: learners that are being handed out.
        held_back: learners in quarantine.
    """
    trials: list[Opening] = []
    for of_run in waiting:
        for learner in of_run.learners():
            opening = Opening(of_run.run, learner)
            if reserved and opening.key in reserved:
                continue
            if opening.key in held_back.learners:
                if opening.key in held_back.trials:
                    trials.append(opening)
                continue
            yield opening
    yield from trials


class Offers:
    """Openings that workers choose among one after the other; each is looked up once."""

    def __init__(self, openings: Iterable[Opening]) -> None:
        self._seen: dict[AssignmentKey, Opening] = {}
        self._unseen = iter(openings)

    def __iter__(self) -> Iterator[Opening]:
        """The openings that are left, in their order."""
        yield from tuple(self._seen.values())
        for opening in self._unseen:
            self._seen[opening.key] = opening
            yield opening

    def __bool__(self) -> bool:
        """Whether any is left."""
        return any(True for _ in self)

    def take(self, opening: Opening) -> None:
        """Remove an opening."""
        del self._seen[opening.key]


def why_idle(worker: WorkerRecord, waiting: Iterable[Waiting]) -> str:
    """What keeps a free worker from all learners that wait, as a clause about it; or empty."""
    reasons = [_why_not(worker, of_run) for of_run in waiting if of_run.indices]
    return reasons[0] if reasons and all(reasons) else ""


def _why_not(worker: WorkerRecord, waiting: Waiting) -> str:
    if refusal := worker.refusal(waiting.run):
        return f"cannot train run {waiting.run.name}, for it does not {refusal}"
    return why_all_trained(worker, waiting.run, waiting.learners())


def why_waiting(
    waiting: Waiting, *, alive: Collection[WorkerRecord], busy: Collection[str] = ()
) -> str:
    """What a run's learners wait for that no worker can give, as a clause about the workers.

    Args:
        waiting: of the run.
        alive: the present workers.
        busy: ids of those that have a lease.

    Returns:
        Empty where a worker can train them, where there is none at all, or where nothing waits.
    """
    if not alive or not waiting.indices:
        return ""
    run = waiting.run
    if able := [worker for worker in alive if worker.can_run(run)]:
        return why_unconfirmed(run, waiting.learners(), able)
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
    """The first learner that a free worker may train.

    A learner that failed on this worker is left to others while any of them can take it; one that
    its party has trained is left to other parties (`redundancy`).

    Args:
        worker: asks.
        openings: in their order.
        alive: gives the present workers; called only where it matters.
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
