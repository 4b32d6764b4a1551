"""Records: the frozen values that the database keeps, and summaries of ended runs."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator, TypeAdapter

from lipt.common.access.roles import Role
from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.config.tasks import LearnerTask
from lipt.common.inputs.specs import InputFormat
from lipt.common.states import LearnerState, RunState
from lipt.common.targets.values import OtherTarget
from lipt.core.results import CommittedLearner, Ingredient, Outcome

# Records: what the coordinator knows of a run, frozen; every change makes a new record.
#
# These are the values that the database keeps; leases and a learner's progress
# live in memory only (`lipt.coordinator.dispatch.leases`), for a restart renews them.


def _blob_from_state(value: Any) -> BlobName:
    if isinstance(value, BlobName):
        return value
    sha256, size_bytes = value  # as written below
    return BlobName(str(sha256), int(size_bytes))


Blob = Annotated[
    BlobName,
    PlainValidator(_blob_from_state),
    PlainSerializer(lambda name: [name.sha256, name.size_bytes]),
]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def changed(self, **values: Any) -> Self:
        """This record with some fields replaced; a name that is no field is an error."""
        unknown = values.keys() - type(self).model_fields.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no fields {sorted(unknown)}")
        return self.model_copy(update=values)


class SilentEnd(_Record):
    """A lease that ran out, and whose worker was not heard again."""

    worker_id: str
    worker_name: str
    # The last one that the worker had reported as done; 0 for none.
    step: int
    # Seconds, on the clock of `training_started_at`.
    at: float


class CopyRecord(_Record):
    """A learner as one worker handed it in, held back until another worker hands in the same."""

    epoch: int
    worker_id: str
    worker_name: str
    # Who answers for the worker.
    party: str
    # Of the device that it was trained on.
    kind: str
    result: Blob
    snapshots: tuple[Blob, ...] = ()

    @property
    def files(self) -> tuple[BlobName, ...]:
        """All that was handed in."""
        return (*self.snapshots, self.result)


class LearnerRecord(_Record):
    """One learner: its draw, its attempts, its result."""

    index: int
    density: float
    shard: Blob
    state: LearnerState = LearnerState.QUEUED
    # Grows with every grant; a commit with an older one is stale.
    epoch: int = 0
    failures: int = 0
    worker_id: str = ""
    worker_name: str = ""
    device: str = ""
    # Who answers for that worker, and the kind of its device: the same bits come of one kind.
    party: str = ""
    kind: str = ""
    # Where several workers train it: what each has handed in, oldest first.
    copies: tuple[CopyRecord, ...] = ()
    # Workers on which it failed: others are asked first.
    failed_on: tuple[str, ...] = ()
    result: Blob | None = None
    # States on the way to the result, in the order of training.
    snapshots: tuple[Blob, ...] = ()
    loss: float = 0.0
    train_seconds: float = 0.0
    # When its present or last worker got it, and when its result was in; on the clock of
    # `training_started_at`.
    leased_at: float | None = None
    committed_at: float | None = None
    bytes_received: int = 0
    message: str = ""
    # Why attempts counted against it, oldest first; a later success does not erase them.
    refusals: tuple[str, ...] = ()
    # Of its latest attempts, as long as none has ended in another way; the latest last.
    silent_ends: tuple[SilentEnd, ...] = ()
    ingredient: Ingredient | None = None

    @property
    def account(self) -> str:
        """What went wrong with it so far, oldest first, and where it stands; may be empty."""
        return "; ".join(dict.fromkeys(filter(None, (*self.refusals, self.message))))


class SoupRecord(_Record):
    """What came out of the soup."""

    initial_accuracy: float
    mean_learner_accuracy: float
    best_learner_accuracy: float
    soup_accuracy: float
    num_kept: int
    num_validation_examples: int


class CostRecord(_Record):
    """Seconds per stage."""

    initialization_seconds: float = 0.0
    sharding_seconds: float = 0.0
    training_seconds: float = 0.0
    merging_seconds: float = 0.0


class RunRecord(_Record):
    """One run, from its request to its soup."""

    run_id: str
    name: str
    request_id: str
    created_at: float
    config: RunConfig
    fingerprint: str
    # Of the models' outputs.
    num_classes: int
    # What they are, where they are no classes.
    other_target: OtherTarget | None = None
    # What was lowered in the defaults of its configuration, so that its shards fit the data.
    fitted: str = ""
    state: RunState = RunState.PENDING
    ended_at: float | None = None
    message: str = ""
    # What it took of the weights that it starts from, where its head is new.
    note: str = ""
    # What its models are given; None until theta* is made.
    inputs: InputFormat | None = None
    initial_weights: Blob | None = None
    pretrained_weights: Blob | None = None
    learners: tuple[LearnerRecord, ...] = ()
    # Wall clock of the first assignment; the deadline counts from it.
    training_started_at: float | None = None
    soup: SoupRecord | None = None
    costs: CostRecord = CostRecord()
    # The trace that it is part of, as W3C writes it; empty where its request came with none.
    traceparent: str = ""

    def with_learner(self, learner: LearnerRecord) -> RunRecord:
        """This run with one learner replaced."""
        learners = list(self.learners)
        learners[learner.index] = learner
        return self.changed(learners=tuple(learners))

    def count(self) -> Counter[LearnerState]:
        """How many learners are in which state."""
        return Counter(learner.state for learner in self.learners)

    @property
    def all_costs(self) -> dict[str, Any]:
        """Seconds per stage, and bytes: what workers fetched for the learners, and sent of them."""
        sent = (
            blob.size_bytes
            for learner in self.learners
            if learner.result
            # Not pruned, a result is its last snapshot: what is there is not sent again.
            for blob in {*learner.snapshots, learner.result}
        )
        fetched = sum(learner.bytes_received for learner in self.learners)
        return self.costs.model_dump() | {
            "bytes_to_workers": fetched,
            "bytes_from_workers": sum(sent),
        }

    @property
    def committed(self) -> tuple[CommittedLearner, ...]:
        """The learners that are in, ascending by index."""
        return tuple(
            CommittedLearner(learner.index, learner.snapshots, learner.result)
            for learner in self.learners
            if learner.state is LearnerState.DONE and learner.result is not None
        )

    @property
    def outcome(self) -> Outcome:
        """What its stages have led to so far."""
        return Outcome(
            self.name,
            self.config,
            self.inputs,
            self.initial_weights,
            self.pretrained_weights,
            self.committed,
        )

    @property
    def num_failures(self) -> int:
        """How many attempts counted against its learners."""
        return sum(learner.failures for learner in self.learners)

    @property
    def results(self) -> tuple[tuple[int, BlobName], ...]:
        """What the soup is made of: the index and the result of each learner that is in."""
        return tuple((learner.index, learner.result) for learner in self.committed)

    def task(self, learner: LearnerRecord) -> LearnerTask:
        """What a worker is told about one learner; the same for every attempt."""
        inputs = self.inputs
        if inputs is None:
            raise ValueError(f"run {self.run_id} is {self.state}: it has no learners yet")
        return LearnerTask.of(
            self.config,
            inputs,
            num_classes=self.num_classes,
            other_target=self.other_target,
            index=learner.index,
            density=learner.density,
        )


class DataRecord(_Record):
    """A data set that this directory was served with, under one of its fingerprints."""

    fingerprint: str
    source: str
    num_examples: int
    # When a coordinator last began to serve it, by the wall clock.
    served_at: float


class TokenRecord(_Record):
    """A token that was given out; times are of the wall clock."""

    token_id: str
    name: str
    role: Role
    # Of the token's text, which is kept nowhere.
    sha256: str
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None


class SubsetRecord(_Record):
    """A computed subset; `blob` holds its indices, weights and soft labels.

    num_classes: of the soft labels; 0 without.
    """

    key: str
    run_id: str
    strategy: str
    num_examples: int
    num_classes: int = 0
    balanced: bool
    fingerprint: str
    digest: str
    weights_sha256: str
    manifest: dict[str, object]
    blob: Blob
    created_at: float


class DiagnosisRecord(_Record):
    """A computed diagnosis; `blob` is its file."""

    key: str
    # Empty where the data alone was looked at.
    run_id: str
    proxy: str
    num_examples: int
    fingerprint: str
    # Of the caller's own; empty where there were none.
    features_sha256: str
    manifest: dict[str, object]
    blob: Blob
    created_at: float


# Summaries: what is kept in memory of every run; the record of one that has ended stays on disk.
#
# A coordinator may have tens of thousands of ended runs, of which hardly any is asked for.


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What runs are found, listed, counted, held and removed by; fields as in `RunRecord`."""

    run_id: str
    name: str
    request_id: str
    created_at: float
    state: RunState
    ended_at: float | None
    fingerprint: str
    inputs: InputFormat | None

    @classmethod
    def of(cls, run: RunRecord) -> Self:
        """A run's summary as its record is now."""
        return cls(
            run_id=run.run_id,
            name=run.name,
            request_id=run.request_id,
            created_at=run.created_at,
            state=run.state,
            ended_at=run.ended_at,
            fingerprint=run.fingerprint,
            inputs=run.inputs,
        )


def read_summaries(connection: sqlite3.Connection, problems: list[str]) -> tuple[RunSummary, ...]:
    """The summaries of all runs, oldest first; SQLite takes them out of the records.

    Args:
        connection: a database.
        problems: takes a clause for every one that cannot be read, and is left out.
    """
    summaries = []
    # Nearly all runs are of the same few kinds of data: each is read, and kept, once.
    same = cache(str)
    inputs_of = cache(_INPUTS.validate_json)
    for run_id, name, request_id, created_at, *fields in connection.execute(_SUMMARIES):
        try:
            state, ended_at, fingerprint, inputs = fields
            summaries.append(
                RunSummary(
                    run_id=run_id,
                    name=name,
                    request_id=request_id,
                    created_at=created_at,
                    state=RunState(state),
                    ended_at=ended_at,
                    fingerprint=same(fingerprint),
                    inputs=None if inputs is None else inputs_of(inputs),
                )
            )
        except ValueError as error:
            why = str(error)[:500]
            problems.append(f"the record of run {run_id} cannot be read: {why}")
    return tuple(summaries)


_INPUTS: TypeAdapter[InputFormat] = TypeAdapter(InputFormat)
# Of a body that is no JSON nothing is known, not even its state.
_SUMMARIES = """
    SELECT run_id, name, request_id, created_at,
        json_extract(body, '$.state'), json_extract(body, '$.ended_at'),
        json_extract(body, '$.fingerprint'), json_extract(body, '$.inputs')
    FROM (
        SELECT run_id, name, request_id, created_at,
            CASE WHEN json_valid(body) THEN body ELSE '{}' END AS body
        FROM runs
    )
    ORDER BY created_at, run_id
"""
