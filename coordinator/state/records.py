"""Records: the frozen values stored in the database; a change makes a new record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from lipt.common.access import Role
from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.states import Divergence, LearnerState, RunState
from lipt.core.pretraining.results import CommittedLearner, Ingredient, PretrainingState
from lipt.core.tasks import LearnerTask
from lipt.data.inputs.specs import InputFormat
from lipt.data.targets.values import OtherTarget, SingleLabel

# A stored value must fit the messages that show it.
Seconds = Annotated[float, Field(ge=-6e10, le=2.5e11)]  # since 1970, of the years 1 to 9999
Count = Annotated[int, Field(ge=0, lt=2**31)]
Size = Annotated[int, Field(ge=0, lt=2**63)]


def _require_stored(state: RunState) -> RunState:
    if state in (RunState.HELD, RunState.UNREADABLE, RunState.UNKNOWN):
        raise ValueError(f"{state} is shown and never stored")
    return state


StoredState = Annotated[RunState, AfterValidator(_require_stored)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def changed(self, **values: Any) -> Self:
        unknown = values.keys() - type(self).model_fields.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no fields {sorted(unknown)}")
        return self.model_copy(update=values)


class SilentEnd(_Record):
    """An expired lease whose worker has not called since."""

    worker_id: str
    worker_name: str
    step: Count
    # On the clock of `training_started_at`.
    at: Seconds


class Holder(_Record):
    """The worker that a learner is or was leased to."""

    worker_id: str
    worker_name: str
    device: str
    # Certificate, token or worker id of the worker's owner.
    credential: str
    # Device, processor and PyTorch version, which determine a learner's bits.
    kind: str
    # On the clock of `training_started_at`.
    leased_at: Seconds


class LearnerResult(_Record):
    """A worker's stored result of its learner, with its report."""

    blob: BlobName
    snapshots: tuple[BlobName, ...] = ()
    loss: float = 0.0
    # In training, and the steps that they were reported after.
    losses: tuple[float, ...] = ()
    loss_steps: tuple[Count, ...] = ()
    train_seconds: float = 0.0
    bytes_received: Size = 0
    # On the clock of `training_started_at`.
    committed_at: Seconds | None = None
    # Of data that its worker holds: all examples of the source, and their fingerprint.
    num_examples: Size = 0
    fingerprint: str = ""

    @property
    def files(self) -> tuple[BlobName, ...]:
        return (*self.snapshots, self.blob)


class UnconfirmedResult(_Record):
    """One worker's result, held until another worker submits an equal one."""

    epoch: Count
    holder: Holder
    result: LearnerResult


class Queued(_Record):
    """The learner waits for a worker."""

    state: Literal[LearnerState.QUEUED] = LearnerState.QUEUED


class Leased(_Record):
    """The learner is with a worker; the lease's end is in memory alone."""

    state: Literal[LearnerState.LEASED] = LearnerState.LEASED
    holder: Holder


class Done(_Record):
    """The learner's result is stored, and counts."""

    state: Literal[LearnerState.DONE] = LearnerState.DONE
    holder: Holder
    result: LearnerResult


class Failed(_Record):
    """The learner has no attempts left."""

    state: Literal[LearnerState.FAILED] = LearnerState.FAILED


class Dropped(_Record):
    """The run closed without the learner's result."""

    state: Literal[LearnerState.DROPPED] = LearnerState.DROPPED


LearnerStatus = Annotated[Queued | Leased | Done | Failed | Dropped, Field(discriminator="state")]


class FailureReason(StrEnum):
    """Why a learner has no result yet."""

    ERROR = "error"  # an error on its worker
    DIVERGED = "diverged"  # its loss or weights are no longer finite
    REJECTED = "rejected"  # the coordinator's checks refused its result
    DISPUTED = "disputed"  # workers submitted different results


class LearnerFailure(_Record):
    """A failed attempt of a learner; a dispute that counts as none has no `attempt`."""

    reason: FailureReason
    # The worker's words, the check's or the dispute's.
    detail: str = ""
    divergence: Divergence | None = None
    attempt: Count = 0
    max_attempts: Count = 0
    worker_name: str = ""

    @property
    def cause(self) -> str:
        return f"the learner diverged: {self.divergence}" if self.divergence else self.detail

    def __str__(self) -> str:
        on = f" on {self.worker_name}" if self.worker_name else ""
        attempt = f"attempt {self.attempt} of {self.max_attempts}{on}: " if self.attempt else ""
        return f"{attempt}{self.cause}"


class LearnerRecord(_Record):
    """A learner: its shard, attempts and status."""

    index: Count
    density: float
    # None where a worker draws it from the data of `own_source`, which it holds.
    shard: BlobName | None
    own_source: str = ""
    status: LearnerStatus = Queued()
    # Grows with every lease; a commit under an older one is refused.
    epoch: Count = 0
    failures: Count = 0
    # With redundancy: results that await confirmation, oldest first.
    unconfirmed: tuple[UnconfirmedResult, ...] = ()
    # Workers on which it failed: others go first.
    failed_on: tuple[str, ...] = ()
    # Since its latest failure.
    message: str = ""
    # Latest ones, oldest first; kept after a success.
    latest_failures: tuple[LearnerFailure, ...] = ()
    # Latest attempts that ended silently, newest last.
    silent_ends: tuple[SilentEnd, ...] = ()
    ingredient: Ingredient | None = None

    @property
    def state(self) -> LearnerState:
        return self.status.state

    @property
    def result(self) -> LearnerResult | None:
        return self.status.result if isinstance(self.status, Done) else None

    @property
    def account(self) -> str:
        """The latest failures, oldest first, and the latest message."""
        reasons = (*map(str, self.latest_failures), self.message)
        return "; ".join(dict.fromkeys(filter(None, reasons)))

    @property
    def latest_reason(self) -> str:
        return self.message or str(next(reversed(self.latest_failures), ""))

    @property
    def divergence(self) -> Divergence | None:
        """The first one of its latest failures."""
        return next(filter(None, (failure.divergence for failure in self.latest_failures)), None)


class SoupRecord(_Record):
    """The soup's accuracies on the validation split."""

    initial_accuracy: float
    mean_learner_accuracy: float
    best_learner_accuracy: float
    soup_accuracy: float
    num_kept: Count
    num_validation_examples: Count


class CostRecord(_Record):
    """Seconds per stage."""

    initialization_seconds: float = 0.0
    sharding_seconds: float = 0.0
    training_seconds: float = 0.0
    merging_seconds: float = 0.0


class RunRecord(_Record):
    """A run, from its request to its soup."""

    run_id: str
    name: str
    request_id: str
    created_at: Seconds
    config: RunConfig
    # The data: its name, its usable examples, and what binds the run to it.
    source: str = ""
    num_examples: Size = 0
    fingerprint: str
    num_classes: Count
    # Set if the outputs are not classes.
    other_target: OtherTarget | None = None
    # By source: their names; learner i trains on source i modulo their number.
    sources: tuple[str, ...] = ()
    # A sentence on defaults that were lowered so that the shards fit the data.
    lowered_defaults: str = ""
    state: StoredState = RunState.PENDING
    ended_at: Seconds | None = None
    message: str = ""
    # The source of a new head's other weights, in one sentence.
    initialization_note: str = ""
    # None until theta* is made.
    inputs: InputFormat | None = None
    initial_weights: BlobName | None = None
    pretrained_weights: BlobName | None = None
    learners: tuple[LearnerRecord, ...] = ()
    # Wall clock of the first lease; the deadline counts from it.
    training_started_at: Seconds | None = None
    soup: SoupRecord | None = None
    costs: CostRecord = CostRecord()
    # W3C trace context of its request, if any.
    traceparent: str = ""

    def with_learner(self, learner: LearnerRecord) -> RunRecord:
        learners = list(self.learners)
        learners[learner.index] = learner
        return self.changed(learners=tuple(learners))

    def count(self) -> Counter[LearnerState]:
        return Counter(learner.state for learner in self.learners)

    @property
    def all_costs(self) -> dict[str, Any]:
        results = [learner.result for learner in self.learners if learner.result]
        # Without pruning, a result is its last snapshot, which is sent once.
        sent = (blob.size_bytes for result in results for blob in set(result.files))
        return self.costs.model_dump() | {
            "bytes_to_workers": sum(result.bytes_received for result in results),
            "bytes_from_workers": sum(sent),
        }

    @property
    def outcome(self) -> PretrainingState:
        committed = tuple(
            CommittedLearner(learner.index, result.snapshots, result.blob)
            for learner in self.learners
            if (result := learner.result)
        )
        return PretrainingState(
            self.name,
            self.config,
            self.inputs,
            self.initial_weights,
            self.pretrained_weights,
            committed,
        )

    @property
    def results(self) -> tuple[tuple[int, BlobName], ...]:
        """Index and result of each committed learner, ascending: the soup's ingredients."""
        return tuple((learner.index, learner.result) for learner in self.outcome.learners)

    def contradictions(self) -> Iterator[str]:
        """Yield what no stored run has: missing learners, theta* or theta_p."""
        num_learners = self.config.learners.num_learners
        begun = self.state in (RunState.TRAINING, RunState.MERGING, RunState.READY)
        indices = [learner.index for learner in self.learners]
        if indices != list(range(num_learners if begun or indices else 0)):
            yield f"run {self.name} has {len(indices)} of {num_learners} learners: some are missing"
        if self.state is RunState.READY and self.pretrained_weights is None:
            yield f"run {self.name} is ready and has no theta_p"
        if begun and (self.initial_weights is None or self.inputs is None):
            yield f"run {self.name} is {self.state} and has no theta*"

    @property
    def num_failures(self) -> int:
        return sum(learner.failures for learner in self.learners)

    @property
    def theta(self) -> tuple[InputFormat, BlobName]:
        """The format of the models' inputs, and theta*, which a run makes first."""
        if self.inputs is None or self.initial_weights is None:
            raise ValueError(f"run {self.run_id} is {self.state}: it has no theta* yet")
        return self.inputs, self.initial_weights

    def task(self, learner: LearnerRecord) -> LearnerTask:
        inputs, _ = self.theta
        target = self.other_target or SingleLabel(self.num_classes)
        index, density = learner.index, learner.density
        return LearnerTask.of(self.config, inputs, target, index=index, density=density)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The fields of a `RunRecord` that stay in memory for every run.

    Of an unreadable one, its columns in the database, and the `problem`.
    """

    run_id: str
    name: str
    request_id: str
    created_at: Seconds
    state: StoredState
    ended_at: Seconds | None = None
    source: str = ""
    fingerprint: str = ""
    inputs: InputFormat | None = None
    problem: str = ""

    @classmethod
    def of(cls, run: RunRecord) -> Self:
        return cls(*(getattr(run, name) for name in cls.__slots__ if name != "problem"))

    def unreadable(self, problem: str) -> Self:
        return replace(self, state=RunState.UNREADABLE, ended_at=None, problem=problem)


class TokenRecord(_Record):
    """A created token; times are wall clock."""

    token_id: str
    name: str
    role: Role
    # SHA-256 of the token's text, which is never stored.
    sha256: str
    created_at: Seconds
    created_by: str
    expires_at: Seconds | None = None
    revoked_at: Seconds | None = None
    # Its workers may score ranges of examples, and train on their own data of this source.
    scores: bool = False
    source: str = ""


class _Answer(_Record):
    """A computed answer of a run; `blob` is its file, `fingerprint` that of its data."""

    key: str
    run_id: str
    fingerprint: str
    manifest: dict[str, object]
    blob: BlobName
    created_at: Seconds


class SubsetRecord(_Answer):
    """A computed subset; its file holds its indices, weights and soft labels."""

    strategy: str
    num_examples: Size
    num_classes: Size = 0
    balanced: bool
    digest: str
    weights_sha256: str


class MixtureRecord(_Answer):
    """A fitted mixture of a run's sources."""

    target_sha256: str


class DiagnosisRecord(_Answer):
    """A computed diagnosis; its `run_id` is empty where it is of the data alone."""

    proxy: str
    num_examples: Size
    # Digest of the caller's own features; empty without.
    features_sha256: str
