"""Redundancy: whether a learner trained by several workers counts, and who retrains it.

On one kind of device a learner is the same to the bit. With `learners.redundancy` 2, a result is
held until another worker hands in the same files. If two disagree, a third trains it, and the
majority wins. Devices of different kinds neither blame nor confirm each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from lipt.common.states import LearnerState
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.runs.transitions import LearnerResult, counted_against, done
from lipt.coordinator.state.records import CopyRecord, LearnerRecord, RunRecord


class Verdict(Enum):
    """The outcome for a new result."""

    TAKE = auto()
    # No other worker has confirmed or contradicted it.
    HOLD = auto()
    # Another worker on this kind of device handed in other files.
    DISAGREE = auto()


@dataclass(frozen=True)
class Judgement:
    """The verdict, its reason, and the suspected workers (both, if two disagree)."""

    verdict: Verdict
    reason: str = ""
    suspects: tuple[str, ...] = ()


def judge(earlier: Sequence[CopyRecord], newest: CopyRecord, *, redundancy: int) -> Judgement:
    """Judge the newest copy; `earlier` copies are from other workers, and no two agree."""
    others = [copy for copy in earlier if copy.party != newest.party]
    same = [copy for copy in others if copy.files == newest.files]
    wrong = [copy for copy in others if copy.files != newest.files]
    if redundancy == 1 or (same and not wrong):
        return Judgement(Verdict.TAKE)
    if same:
        return Judgement(
            Verdict.TAKE,
            f"workers {same[0].worker_name} and {newest.worker_name} agree on it, and "
            f"{_handed_in(wrong)}: look at {_names(wrong)}",
            tuple(copy.worker_name for copy in wrong),
        )
    rivals = [copy for copy in others if copy.kind == newest.kind]
    if not rivals:
        return Judgement(
            Verdict.HOLD,
            f"worker {newest.worker_name} has handed it in; it waits for another worker to hand "
            "in the same",
        )
    both = (*rivals, newest)
    return Judgement(
        Verdict.DISAGREE,
        f"{_handed_in(both)}, on the same kind of device ({newest.kind}): none is taken until "
        "another worker agrees with one of them",
        tuple(copy.worker_name for copy in both),
    )


def handed_in(
    learner: LearnerRecord, result: LearnerResult, *, redundancy: int, max_attempts: int
) -> tuple[LearnerRecord, Judgement]:
    """The learner after its worker handed in a result, and the judgement."""
    copy = CopyRecord(
        epoch=learner.epoch,
        worker_id=learner.worker_id,
        worker_name=learner.worker_name,
        party=learner.party,
        kind=learner.kind,
        result=result.blob,
        snapshots=result.snapshots,
    )
    judged = judge(learner.copies, copy, redundancy=redundancy)
    if judged.verdict is Verdict.TAKE:
        taken = done(learner, result)
        return (counted_against(taken, judged.reason) if judged.reason else taken), judged
    # Requeued, for another worker to confirm.
    kept = learner.changed(
        state=LearnerState.QUEUED, copies=(*learner.copies, copy), message=judged.reason
    )
    if judged.verdict is Verdict.DISAGREE:
        # The first dispute is no failed attempt: a third worker settles it.
        counts = bool(judged.suspects[2:])
        kept = counted_against(kept, judged.reason, max_attempts=max_attempts if counts else None)
    return kept, judged


def may_train(
    worker: WorkerRecord,
    run: RunRecord,
    learner: LearnerRecord,
    *,
    alive: Collection[WorkerRecord],
) -> bool:
    """Whether a worker may train a learner: once per party, best on a device that can confirm."""
    if not learner.copies:
        return True
    if not _is_another(worker, learner):
        return False
    kinds = {copy.kind for copy in learner.copies}
    return worker.kind in kinds or not any(
        other.kind in kinds and _is_another(other, learner) and other.can_run(run)
        for other in alive
    )


def why_all_trained(worker: WorkerRecord, run: RunRecord, waiting: Iterable[LearnerRecord]) -> str:
    """Why a worker gets none of a run's queued learners, as a clause; or empty."""
    if any(_is_another(worker, learner) for learner in waiting):
        return ""
    return (
        f"has trained all that waits of run {run.name}, and learners.redundancy = "
        f"{run.config.learners.redundancy} wants another worker to train it, too"
    )


def why_unconfirmed(
    run: RunRecord, waiting: Iterable[LearnerRecord], able: Collection[WorkerRecord]
) -> str:
    """Why no two `able` workers can confirm a run's queued learners; empty if two can."""
    wanted = run.config.learners.redundancy
    parties = {worker.party for worker in able}
    lacking = [
        learner
        for learner in waiting
        if (
            not any(_is_another(worker, learner) for worker in able)
            if learner.copies
            else len(parties) < wanted
        )
    ]
    if not lacking:
        return ""
    names = sorted(worker.name for worker in able)
    there = f"worker {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    kinds = sorted({copy.kind for learner in lacking for copy in learner.copies})
    device = f", on such a device: {' or '.join(kinds)}" if kinds else ""
    num_held = sum(bool(learner.copies) for learner in lacking)
    held = f"; {num_held} of its learners held back for it" if num_held else ""
    return (
        f"{there} {'is' if len(names) == 1 else 'are'} not enough: learners.redundancy = {wanted} "
        f"wants another, with a certificate or token of its own where workers have some"
        f"{device}{held}"
    )


def _is_another(worker: WorkerRecord, learner: LearnerRecord) -> bool:
    return all(worker.party != copy.party for copy in learner.copies)


def _handed_in(copies: Sequence[CopyRecord]) -> str:
    parts = [f"{copy.worker_name} handed in {copy.result.sha256[:12]}" for copy in copies]
    return f"worker{'s' if len(parts) > 1 else ''} {', '.join(parts)}"


def _names(copies: Sequence[CopyRecord]) -> str:
    return ", ".join(f"{copy.worker_name} ({copy.kind})" for copy in copies)
