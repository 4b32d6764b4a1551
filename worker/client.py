"""A worker's calls to its coordinator, and the heartbeats of its assignment."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Self

import grpc
import torch
from pydantic import Field

from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.backoff import RetryLevels
from lipt.common.blobs.blob import BlobName, blob_from_proto, blob_to_proto
from lipt.common.config.values import validate
from lipt.common.errors import LiptError, StaleLeaseError, UnknownRunError, from_rpc_error
from lipt.common.observability.logs import Events
from lipt.common.observability.tracing import received
from lipt.common.process.devices import device_name, versions_on
from lipt.common.rpc.channel import LongPoll, with_metadata
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, fill_message, message_to_dict
from lipt.common.states import Divergence
from lipt.core.pretraining.sharding import NUM_HALVES
from lipt.core.tasks import LearnerTask, ScoringTask
from lipt.v1 import blob_pb2_grpc, worker_pb2, worker_pb2_grpc
from lipt.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_CALL_SECONDS = 20.0
# The coordinator answers a commit after it has read and checked the learner.
_COMMIT_SECONDS = 300.0
# The longest wait for work in one call.
POLL_SECONDS = 30.0
# Time-outs of calls that a stopping worker waits for, even without a coordinator.
_HEARTBEAT_SECONDS = 10.0
_RELEASE_SECONDS = 5.0
# The run's record keeps as many.
_MAX_ERROR_CHARACTERS = 1000


@dataclass(frozen=True, kw_only=True)
class OwnShard:
    """A shard of data that the worker holds: the wire's message of the same fields."""

    source: Annotated[str, Field(min_length=1)]
    seed: int = 0
    half: Annotated[int, Field(ge=0, lt=NUM_HALVES)] = 0
    names: tuple[str, ...] = ()
    flagged: bool = False
    number_columns: tuple[str, ...] = ()
    category_columns: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A leased learner or range of examples; only learners have `run_id`, index and a shard.

    shard: the blob's name, or how to draw it from the worker's own data.
    """

    assignment_id: str
    epoch: int
    heartbeat_seconds: float
    initial_weights: BlobName
    task: LearnerTask | ScoringTask
    traceparent: str = ""
    run_id: str = ""
    learner_index: int = 0
    shard: BlobName | OwnShard | None = None

    @property
    def is_learner(self) -> bool:
        return self.shard is not None

    def __str__(self) -> str:
        return f"{'learner' if self.is_learner else 'range'} {self.assignment_id}"


class CoordinatorClient:
    """One worker's calls, safe in any thread; `worker_id` is empty until `register`."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._secret = ""
        proving = with_metadata(channel, lambda: ((WORKER_SECRET, self._secret),))
        self._stub = worker_pb2_grpc.WorkerServiceStub(proving)
        self.blobs = blob_pb2_grpc.BlobServiceStub(proving)
        self.polls = LongPoll()
        self.worker_id = ""
        self.idle_reason = ""

    def register(self, instance_id: str, settings: WorkerSettings, device: torch.device) -> None:
        """Register; the random `instance_id` is a secret that authenticates later calls."""
        self._secret = instance_id
        request = worker_pb2.RegisterRequest(
            instance_id=instance_id,
            name=settings.name,
            protocol=worker_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
            device=device_name(device),
            versions=versions_on(device),
            allowed_modules=settings.allow_modules,
            has_data=settings.worker_data is not None and settings.source is None,
            source=settings.source or "",
        )
        self.worker_id = str(_call(self._stub.Register, request, _CALL_SECONDS).worker_id)

    def acquire(self, *, wait_seconds: float = POLL_SECONDS) -> Assignment | None:
        """The next assignment, or None; raises after releasing one that this version cannot do."""
        request = worker_pb2.AcquireAssignmentRequest(
            worker_id=self.worker_id, wait_seconds=wait_seconds
        )
        timeout = wait_seconds + _CALL_SECONDS
        call = self.polls.answered(
            lambda: self._stub.AcquireAssignment.future(request, timeout=timeout)
        )
        if call is None:
            return None
        response = call.result()
        self.idle_reason = response.idle_reason
        if not response.HasField("assignment"):
            return None
        message = response.assignment
        try:
            return _assignment(message, received(call.trailing_metadata()))
        except LiptError as error:
            # A newer coordinator may send unknown tasks.
            self.release(message.assignment_id, message.lease.epoch, str(error))
            raise

    def heartbeat(self, assignment: Assignment, progress: worker_pb2.LearnerProgress) -> bool:
        """Keep the lease; returns whether the coordinator no longer needs it."""
        request = worker_pb2.HeartbeatRequest(
            worker_id=self.worker_id,
            assignment_id=assignment.assignment_id,
            epoch=assignment.epoch,
            progress=progress,
        )
        timeout_seconds = min(_HEARTBEAT_SECONDS, assignment.heartbeat_seconds)
        return bool(_call(self._stub.Heartbeat, request, timeout_seconds).stop)

    def commit(
        self,
        assignment: Assignment,
        names: Sequence[BlobName],
        report: worker_pb2.LearnerReport,
        data_proof: str = "",
    ) -> None:
        """Commit uploads: a learner's snapshots in training order and its result, or a range."""
        *snapshots, result = names
        request = worker_pb2.CommitResultRequest(
            worker_id=self.worker_id,
            assignment_id=assignment.assignment_id,
            epoch=assignment.epoch,
            result=blob_to_proto(result),
            report=report,
            snapshots=map(blob_to_proto, snapshots),
            data_proof=data_proof,
        )
        _call(self._stub.CommitResult, request, _COMMIT_SECONDS)

    def release(
        self,
        assignment_id: str,
        epoch: int,
        error: str = "",
        *,
        divergence: Divergence | None = None,
        over_limits: bool = False,
    ) -> None:
        """Release an assignment: undone, failed with an error, or over this worker's limits."""
        request = worker_pb2.ReleaseAssignmentRequest(
            worker_id=self.worker_id,
            assignment_id=assignment_id,
            epoch=epoch,
            error=error[:_MAX_ERROR_CHARACTERS],
            over_limits=over_limits,
        )
        if divergence is not None:
            fill_message(request.divergence, asdict(divergence))
        _call(self._stub.ReleaseAssignment, request, _RELEASE_SECONDS)


def _call(method: Callable[..., Any], request: Any, timeout_seconds: float) -> Any:
    try:
        return method(request, timeout=timeout_seconds)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None


def _assignment(message: worker_pb2.Assignment, traceparent: str) -> Assignment:
    scoring = message.HasField("scoring")
    return Assignment(
        assignment_id=message.assignment_id,
        epoch=message.lease.epoch,
        heartbeat_seconds=max(0.05, message.lease.heartbeat_seconds),
        initial_weights=blob_from_proto(message.initial_weights),
        traceparent=traceparent,
        run_id=message.run_id,
        learner_index=message.learner_index,
        shard=None if scoring else _shard(message),
        task=validate(ScoringTask, message_to_dict(message.scoring))
        if scoring
        else validate(LearnerTask, message_to_dict(message.task)),
    )


def _shard(message: worker_pb2.Assignment) -> BlobName | OwnShard:
    if message.HasField("own_shard"):
        return validate(OwnShard, message_to_dict(message.own_shard))
    return blob_from_proto(message.shard)


class LeaseKeeper:
    """Sends heartbeats from a thread; sets `lost` when the assignment is no longer needed."""

    def __init__(
        self,
        client: CoordinatorClient,
        assignment: Assignment,
        events: Events,
        levels: RetryLevels,
    ) -> None:
        self.lost = threading.Event()
        self._client = client
        self._assignment = assignment
        self._events, self._levels = events, levels
        task = assignment.task
        self._num_steps = task.learners.num_steps if isinstance(task, LearnerTask) else 0
        self._left = threading.Event()
        self._news = threading.Event()
        self.report(worker_pb2.LEARNER_PHASE_FETCHING)
        # Keeps the creator's log context.
        keep = partial(copy_context().run, self._keep)
        self._thread = threading.Thread(target=keep, name="lease", daemon=True)

    def report(self, phase: worker_pb2.LearnerPhase, step: int = 0, loss: float = 0.0) -> None:
        self._progress = worker_pb2.LearnerProgress(
            phase=phase, step=step, num_steps=self._num_steps, loss=loss
        )
        self._news.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._news.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._left.is_set() and not self.lost.is_set():
            self._news.clear()
            try:
                if self._client.heartbeat(self._assignment, self._progress):
                    logger.info("%s is no longer needed", self._assignment)
                    self.lost.set()
                if self._levels.recover():
                    logger.info("the coordinator answers again")
            except (StaleLeaseError, UnknownRunError) as error:
                logger.warning("%s", error)
                self.lost.set()
            except LiptError as error:
                # The lease may survive a restart of the coordinator.
                name = self._assignment.assignment_id
                level = self._levels.level(error)
                self._events.retried("heartbeat", error, level=level, assignment=name)
                pause = min(1.0, self._assignment.heartbeat_seconds)
                self._left.wait(max(pause, error.retry_after_seconds or 0.0))
            self._news.wait(self._assignment.heartbeat_seconds)
