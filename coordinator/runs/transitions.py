"""State transitions of a run and its learners: pure functions from record to record.

Redundancy: on one kind of device a learner is the same to the bit. With `learners.redundancy` 2,
a result is held until another worker submits the same files. If two disagree, a third trains it,
and the majority wins. Devices of different kinds neither blame nor confirm each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from lipt.common.blobs.blob import BlobName
from lipt.common.states import LearnerState
from lipt.coordinator.state.records import (
    Done,
    Dropped,
    Failed,
    FailureReason,
    Holder,
    LearnerFailure,
    LearnerRecord,
    LearnerResult,
    Queued,
    RunRecord,
    SilentEnd,
    UnconfirmedResult,
)
from lipt.core.pretraining.results import divergence_message

# Bounds the record's size: a run may allow any number of attempts.
_MAX_FAILURES = 5
_MAX_DETAIL_CHARACTERS = 500
_MAX_SILENT_ENDS = 10
MAX_LOSSES = 20
DAMAGED = "its result was in, but the coordinator's disk has changed or lost it"


class Closing(Enum):
    """The next step of a run in training."""

    WAIT = auto()
    MERGE = auto()
    FAIL = auto()


@dataclass(frozen=True)
class ClosingDecision:
    """The verdict, its reason, and when to check again (None: at the next change)."""

    verdict: Closing
    reason: str
    seconds_left: float | None = None


def decide_closing(run: RunRecord, *, now: float) -> ClosingDecision:
    """Whether a run in training merges, waits or fails; `now` is on its deadline's clock."""
    settings = run.config.learners
    done = run.count()[LearnerState.DONE]
    missing = [learner for learner in run.learners if learner.state is not LearnerState.DONE]
    in_words = f"{done} of {len(run.learners)} learners"
    if not any(learner.state.open for learner in missing):
        closes, remedy = f"all learners have ended, {in_words} are in", ""
    elif not settings.deadline_seconds or run.training_started_at is None:
        return ClosingDecision(Closing.WAIT, f"{in_words} are in")
    else:
        left = run.training_started_at + settings.deadline_seconds - now
        if left > 0:
            return ClosingDecision(Closing.WAIT, f"{in_words} are in", seconds_left=left)
        closes = f"the deadline of {settings.deadline_seconds:g} s has passed with {in_words} in"
        remedy = " Raise learners.deadline_seconds, or add workers."
    if done >= settings.min_learners:
        return ClosingDecision(Closing.MERGE, closes)
    divergences = [learner.divergence for learner in missing if learner.divergence is not None]
    if len(divergences) == len(missing):
        # They differ only in a number, and would fill a page.
        return ClosingDecision(Closing.FAIL, divergence_message(divergences, len(run.learners)))
    few = f"{closes}, min_learners is {settings.min_learners}."
    return ClosingDecision(Closing.FAIL, f"{few} {_missing_learners(missing)}{remedy}")


def with_deadline_running(run: RunRecord, *, now: float) -> RunRecord:
    """The run with its deadline started, if a learner was ever leased."""
    started = run.training_started_at
    if started is None:
        # Counted from now if the run was held since its first lease.
        begun = any(learner.epoch for learner in run.learners)
        return run.changed(training_started_at=now) if begun else run
    # The machine's clock may have been set back since an earlier process.
    return run if started <= now else run.changed(training_started_at=now)


def _missing_learners(missing: Iterable[LearnerRecord]) -> str:
    names = (
        f"learner {learner.index} ({': '.join(filter(None, (learner.state, learner.account)))})"
        for learner in missing
    )
    return f"Missing: {'; '.join(names)}."


def after_failure(
    learner: LearnerRecord, failure: LearnerFailure, *, holder: Holder, max_attempts: int
) -> LearnerRecord:
    """The learner after a failed attempt: requeued, or failed."""
    failed_on = (*learner.failed_on, holder.worker_id)
    queued = learner.changed(status=Queued(), failed_on=failed_on, silent_ends=())
    named = failure.changed(worker_name=holder.worker_name)
    return with_failure(queued, named, max_attempts=max_attempts)


def with_failure(
    learner: LearnerRecord, failure: LearnerFailure, *, max_attempts: int | None = None
) -> LearnerRecord:
    """The learner with a failure added; counts as an attempt if `max_attempts` is set."""
    kept = failure.changed(detail=failure.detail[:_MAX_DETAIL_CHARACTERS])
    if max_attempts is not None:
        kept = kept.changed(attempt=learner.failures + 1, max_attempts=max_attempts)
        status = Failed() if kept.attempt >= max_attempts else learner.status
        learner = learner.changed(failures=kept.attempt, status=status)
    failed = (*learner.latest_failures, kept)[-_MAX_FAILURES:]
    return learner.changed(message="", latest_failures=failed)


def requeued(
    learner: LearnerRecord, reason: str, silent_end: SilentEnd | None = None
) -> LearnerRecord:
    """The learner after its worker left or fell silent; not a failed attempt."""
    ends = learner.silent_ends if silent_end is None else (*learner.silent_ends, silent_end)
    return learner.changed(status=Queued(), message=reason, silent_ends=ends[-_MAX_SILENT_ENDS:])


@dataclass(frozen=True)
class LossCurve:
    """A learner's losses in training, and the steps that they were reported after, ascending."""

    losses: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()

    def after(self, step: int, loss: float, *, num_steps: int) -> LossCurve:
        """With one more report; points are spaced evenly, but for the last one, the newest.

        An earlier step is another worker's, and step 0 has no loss: both begin anew. A step beyond
        the last one is none.
        """
        if step <= 0:
            return LossCurve()
        if step > num_steps or (self.steps and step == self.steps[-1]):
            return self
        losses, steps = self.losses, self.steps
        if steps and step < steps[-1]:
            losses, steps = (), ()
        # With the first and the newest there are `MAX_LOSSES`.
        if len(steps) > 1 and (steps[-1] - steps[-2]) * (MAX_LOSSES - 2) < num_steps:
            losses, steps = losses[:-1], steps[:-1]
        # Four digits are more than a chart shows.
        return LossCurve((*losses, float(f"{loss:.4g}")), (*steps, step))


def done(learner: LearnerRecord, holder: Holder, result: LearnerResult) -> LearnerRecord:
    status = Done(holder=holder, result=result)
    return learner.changed(status=status, message="", silent_ends=())


@dataclass(frozen=True)
class Verification:
    """Whether a result is taken, why, and the suspected workers (both, if two disagree)."""

    taken: bool
    reason: str = ""
    suspects: tuple[str, ...] = ()


def verify(
    earlier: Sequence[UnconfirmedResult], newest: UnconfirmedResult, *, redundancy: int
) -> Verification:
    """Verify the newest result; `earlier` ones are from other workers, and no two agree."""
    mine, files = newest.holder, newest.result.files
    rest = [held for held in earlier if held.holder.credential != mine.credential]
    same = [held.holder for held in rest if held.result.files == files]
    wrong = [held for held in rest if held.result.files != files]
    if redundancy == 1 or (same and not wrong):
        return Verification(taken=True)
    if same:
        return Verification(
            True,
            f"workers {same[0].worker_name} and {mine.worker_name} agree on it, and "
            f"{_handed_in(wrong)}: look at "
            f"{', '.join(f'{held.holder.worker_name} ({held.holder.kind})' for held in wrong)}",
            tuple(held.holder.worker_name for held in wrong),
        )
    rivals = [held for held in rest if held.holder.kind == mine.kind]
    if not rivals:
        return Verification(
            False,
            f"worker {mine.worker_name} has handed it in; it waits for another worker to hand in "
            "the same",
        )
    both = (*rivals, newest)
    return Verification(
        False,
        f"{_handed_in(both)}, on the same kind of device ({mine.kind}): none is taken until "
        "another worker agrees with one of them",
        tuple(held.holder.worker_name for held in both),
    )


def with_result(
    learner: LearnerRecord,
    result: LearnerResult,
    *,
    holder: Holder,
    redundancy: int,
    max_attempts: int,
) -> tuple[LearnerRecord, Verification]:
    held = UnconfirmedResult(epoch=learner.epoch, holder=holder, result=result)
    verified = verify(learner.unconfirmed, held, redundancy=redundancy)
    dispute = LearnerFailure(reason=FailureReason.DISPUTED, detail=verified.reason)
    if verified.taken:
        taken = done(learner, holder, result)
        return (with_failure(taken, dispute) if verified.reason else taken), verified
    # Requeued, for another worker to confirm.
    kept = learner.changed(
        status=Queued(), unconfirmed=(*learner.unconfirmed, held), message=verified.reason
    )
    if verified.suspects:
        # The first dispute is no failed attempt: a third worker settles it.
        counts = bool(verified.suspects[2:])
        kept = with_failure(kept, dispute, max_attempts=max_attempts if counts else None)
    return kept, verified


def _handed_in(results: Sequence[UnconfirmedResult]) -> str:
    parts = [
        f"{held.holder.worker_name} submitted {held.result.blob.sha256[:12]}" for held in results
    ]
    return f"worker{'s' if len(parts) > 1 else ''} {', '.join(parts)}"


def has_result(learner: LearnerRecord, result: BlobName, worker_id: str, epoch: int) -> bool:
    given = [(held.holder.worker_id, held.epoch, held.result.blob) for held in learner.unconfirmed]
    if isinstance(learner.status, Done):
        accepted = learner.status
        given.append((accepted.holder.worker_id, learner.epoch, accepted.result.blob))
    return (worker_id, epoch, result) in given


def without_open_learners(run: RunRecord, reason: str) -> RunRecord:
    learners = tuple(
        learner.changed(status=Dropped(), message=reason) if learner.state.open else learner
        for learner in run.learners
    )
    return run.changed(learners=learners)


def without_results(run: RunRecord, indices: tuple[int, ...]) -> RunRecord:
    for index in indices:
        run = run.with_learner(requeued(run.learners[index], DAMAGED).changed(unconfirmed=()))
    return run
