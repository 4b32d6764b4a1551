"""Who gets which learner next, and when a run closes: pure decisions.

The clock is an argument and a reason always comes back, so that the tests need
no sleep and the log says why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from lipt.common.errors import InvalidRequestError
from lipt.common.factory import is_factory_spec
from lipt.coordinator.state.records import LearnerRecord, LearnerState, RunRecord, RunState

LearnerKey = tuple[str, int]  # run id, learner index

# What is kept of the attempts that failed: a run may allow any number of them.
_MAX_REFUSALS = 5
_MAX_REASON_CHARACTERS = 500


# Python refuses to read numbers of thousands of digits, and no run has so many learners.
_MAX_INDEX_DIGITS = 9


def parse_assignment_id(text: str) -> LearnerKey:
    """The run and learner of an assignment id, "RUN/INDEX".

    Raises:
        InvalidRequestError: it has another form.
    """
    run_id, separator, index = text.rpartition("/")
    if not separator or not run_id or not index.isdecimal() or len(index) > _MAX_INDEX_DIGITS:
        raise InvalidRequestError(f"assignment id {text!r} is not RUN/INDEX.")
    return run_id, int(index)


@dataclass(frozen=True)
class WorkerRecord:
    """A registered worker."""

    worker_id: str
    name: str
    device: str
    versions: dict[str, str]
    allowed_modules: tuple[str, ...]
    heard_at: float

    def can_run(self, run: RunRecord) -> bool:
        """Whether it may build the run's model."""
        model = run.config.model
        if model.startswith("torchvision:") or not is_factory_spec(model):
            return True
        module = model.partition(":")[0]
        return any(
            module == allowed or module.startswith(f"{allowed}.")
            for allowed in self.allowed_modules
        )


def num_queued(runs: Iterable[RunRecord], reserved: Collection[LearnerKey] = ()) -> int:
    """How many learners wait for a worker, apart from those that are being handed out."""
    return sum(
        learner.state is LearnerState.QUEUED and (run.run_id, learner.index) not in reserved
        for run in runs
        if run.state is RunState.TRAINING
        for learner in run.learners
    )


def choose_learner(
    worker: WorkerRecord,
    runs: Iterable[RunRecord],
    *,
    alive: Collection[WorkerRecord],
    reserved: Collection[LearnerKey] = (),
) -> LearnerKey | None:
    """The learner that a free worker should train next.

    The oldest run first, in it the lowest index. A learner that already failed
    on this worker is left to the others while any of them could take it.

    Args:
        worker: who asks.
        runs: all runs, oldest first.
        alive: the workers that are there, with or without the one who asks.
        reserved: learners that are being handed out at this moment.
    """
    for run in runs:
        if run.state is not RunState.TRAINING or not worker.can_run(run):
            continue
        for learner in run.learners:
            key = (run.run_id, learner.index)
            if learner.state is not LearnerState.QUEUED or key in reserved:
                continue
            if worker.worker_id in learner.failed_on and any(
                other.worker_id not in learner.failed_on and other.can_run(run) for other in alive
            ):
                continue
            return key
    return None


class Closing(Enum):
    """What to do with a run whose learners are being trained."""

    WAIT = auto()
    MERGE = auto()
    FAIL = auto()


@dataclass(frozen=True)
class ClosingDecision:
    """The verdict, why, and when to look again (None: when something changes)."""

    verdict: Closing
    reason: str
    seconds_left: float | None = None


def decide_closing(run: RunRecord, *, now: float) -> ClosingDecision:
    """Whether a run goes on to its soup.

    It does when every learner has ended, or when its deadline (counted from the
    first assignment) has passed and `min_learners` are in. With fewer than
    `min_learners` at that point, or none left to come, it fails, and the reason
    names the missing ones.

    Args:
        run: a run in TRAINING.
        now: seconds, on the clock of `training_started_at`.
    """
    settings = run.config.learners
    done = run.count()[LearnerState.DONE]
    missing = [learner for learner in run.learners if learner.state is not LearnerState.DONE]
    still_open = [learner for learner in missing if learner.state.open]
    enough = done >= settings.min_learners
    in_words = f"{done} of {len(run.learners)} learners"

    if not still_open:
        if enough:
            return ClosingDecision(Closing.MERGE, f"all learners have ended, {in_words} are in")
        return ClosingDecision(
            Closing.FAIL,
            f"{in_words} are in, min_learners is {settings.min_learners}, and none is left to "
            f"come. {_why_missing(missing)}",
        )
    if not settings.deadline_seconds or run.training_started_at is None:
        return ClosingDecision(Closing.WAIT, f"{in_words} are in")
    left = run.training_started_at + settings.deadline_seconds - now
    if left > 0:
        return ClosingDecision(Closing.WAIT, f"{in_words} are in", seconds_left=left)
    passed = f"the deadline of {settings.deadline_seconds:g} s has passed"
    if enough:
        return ClosingDecision(Closing.MERGE, f"{passed} with {in_words} in")
    return ClosingDecision(
        Closing.FAIL,
        f"{passed} with {in_words} in, min_learners is {settings.min_learners}. "
        f"{_why_missing(missing)} Raise learners.deadline_seconds, or add workers.",
    )


def _why_missing(missing: Iterable[LearnerRecord]) -> str:
    return (
        "Missing: "
        + "; ".join(f"learner {learner.index} ({_whereabouts(learner)})" for learner in missing)
        + "."
    )


def _whereabouts(learner: LearnerRecord) -> str:
    if learner.state is LearnerState.LEASED:
        where = f"at worker {learner.worker_name}"
    elif learner.state is LearnerState.QUEUED:
        where = "waiting for a worker"
    else:
        where = learner.state.value
    return f"{where}: {learner.account}" if learner.account else where


def after_failure(
    learner: LearnerRecord, *, worker_id: str, reason: str, max_attempts: int
) -> LearnerRecord:
    """The learner after an attempt that counts against it: queued again, or given up."""
    failures = learner.failures + 1
    given_up = failures >= max_attempts
    on = f" on {learner.worker_name}" if learner.worker_name else ""
    message = f"attempt {failures} of {max_attempts}{on}: {reason[:_MAX_REASON_CHARACTERS]}"
    return learner.changed(
        state=LearnerState.FAILED if given_up else LearnerState.QUEUED,
        failures=failures,
        failed_on=(*learner.failed_on, worker_id),
        message=message,
        refusals=(*learner.refusals, message)[-_MAX_REFUSALS:],
    )


def leased(learner: LearnerRecord, worker: WorkerRecord) -> LearnerRecord:
    """The learner out at a worker, under a new epoch."""
    return learner.changed(
        state=LearnerState.LEASED,
        epoch=learner.epoch + 1,
        worker_id=worker.worker_id,
        worker_name=worker.name,
        device=worker.device,
    )


def requeued(learner: LearnerRecord, reason: str) -> LearnerRecord:
    """The learner after its worker went away: no failure of its own."""
    return learner.changed(state=LearnerState.QUEUED, message=reason)
