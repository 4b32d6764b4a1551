"""Coordinator client: a worker's calls as plain functions that take and give frozen values.

Stubs and messages end here; what goes wrong is raised as the `LiptError` that the
coordinator raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.blobs.blob import BlobName, blob_from_proto, blob_to_proto
from lipt.common.config.tasks import LearnerTask, ScoringTask
from lipt.common.config.values import scoring_from_proto, task_from_proto
from lipt.common.errors import LiptError
from lipt.common.observability.tracing import received
from lipt.common.rpc.channel import with_metadata
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from lipt.common.rpc.status import from_rpc_error
from lipt.v1 import blob_pb2_grpc, worker_pb2, worker_pb2_grpc

_CALL_SECONDS = 20.0
# A commit is answered once the learner has been read and checked.
_COMMIT_SECONDS = 300.0
# How long one waits for work.
POLL_SECONDS = 30.0
# A worker that is asked to stop waits for the heartbeat that is under way.
_HEARTBEAT_SECONDS = 10.0
# A worker that is asked to stop does not wait long for a coordinator that is gone, too.
_RELEASE_SECONDS = 5.0
# As many as the run's record keeps.
_MAX_ERROR_CHARACTERS = 1000


@dataclass(frozen=True, kw_only=True)
class Leased:
    """What this worker has the lease of."""

    assignment_id: str
    epoch: int
    heartbeat_seconds: float
    initial_weights: BlobName
    # The run's, which this is a part of; empty where there is none.
    traceparent: str = ""

    @property
    def num_steps(self) -> int:
        """How many steps its progress counts; 0 for what has none."""
        return 0

    @property
    def about(self) -> dict[str, object]:
        """What lines of the log are about while it is carried out."""
        return {"assignment": self.assignment_id}


@dataclass(frozen=True, kw_only=True)
class Assignment(Leased):
    """A learner."""

    run_id: str
    learner_index: int
    shard: BlobName
    task: LearnerTask

    @property
    def num_steps(self) -> int:
        """The task's."""
        return self.task.learners.num_steps

    @property
    def about(self) -> dict[str, object]:
        """With its run and its place in it."""
        return {**super().about, "run": self.run_id, "learner": self.learner_index}

    def __str__(self) -> str:
        return f"learner {self.assignment_id}"


@dataclass(frozen=True, kw_only=True)
class ScoringAssignment(Leased):
    """Examples of the data that this worker has before it, and what they are passed through."""

    task: ScoringTask

    def __str__(self) -> str:
        return f"range {self.assignment_id}"


@dataclass(frozen=True)
class Report:
    """What goes with a result, for the run's record."""

    loss: float
    train_seconds: float
    total_seconds: float
    bytes_received: int


class CoordinatorClient:
    """One worker's calls; safe to use from several threads."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._secret = ""
        proving = with_secret(channel, lambda: self._secret)
        self._stub = worker_pb2_grpc.WorkerServiceStub(proving)
        self.blobs = blob_pb2_grpc.BlobServiceStub(proving)
        self._polling: grpc.Future[Any] | None = None
        self._polling_lock = threading.Lock()
        self._interrupted = False
        # What keeps this worker from learners that wait, by the last answer to `acquire`.
        self.idle_reason = ""

    def register(
        self,
        instance_id: str,
        *,
        name: str,
        device: str,
        versions: dict[str, str],
        allowed_modules: tuple[str, ...],
        has_data: bool = False,
    ) -> str:
        """This worker's id; the same instance has the same one.

        From here on every call shows the instance's id, which is drawn at random and told to
        nobody else.
        """
        self._secret = instance_id
        request = worker_pb2.RegisterRequest(
            instance_id=instance_id,
            name=name,
            protocol=worker_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
            device=device,
            versions=versions,
            allowed_modules=allowed_modules,
            has_data=has_data,
        )
        return str(_call(self._stub.Register, request, _CALL_SECONDS).worker_id)

    def acquire(
        self, worker_id: str, *, wait_seconds: float = POLL_SECONDS
    ) -> Assignment | ScoringAssignment | None:
        """What to do next, or None when there was nothing so long or `interrupt` was called.

        Raises:
            ConfigError: this version cannot do it; it was given back with that reason.
        """
        request = worker_pb2.AcquireAssignmentRequest(
            worker_id=worker_id, wait_seconds=wait_seconds
        )
        with self._polling_lock:
            if self._interrupted:
                return None
            polling = self._stub.AcquireAssignment.future(
                request, timeout=wait_seconds + _CALL_SECONDS
            )
            self._polling = polling
            # A signal may have come while the call was being made.
            if self._interrupted:
                polling.cancel()
        try:
            response = polling.result()
        except grpc.FutureCancelledError:
            return None
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        finally:
            self._polling = None
        self.idle_reason = response.idle_reason
        if not response.HasField("assignment"):
            return None
        message = response.assignment
        try:
            return _assignment(message, received(polling.trailing_metadata()))
        except LiptError as error:
            # A newer coordinator may ask for what this version does not know.
            self._release(worker_id, message.assignment_id, message.lease.epoch, str(error))
            raise

    def interrupt(self) -> None:
        """End a long poll now, and every later one; may be called in a signal handler."""
        self._interrupted = True
        polling = self._polling
        if polling is not None:
            polling.cancel()

    def heartbeat(
        self, worker_id: str, assignment: Leased, progress: worker_pb2.LearnerProgress
    ) -> bool:
        """Keep the lease.

        Returns:
            Whether the coordinator no longer needs it.

        Raises:
            StaleLeaseError: it is somebody else's.
        """
        request = worker_pb2.HeartbeatRequest(
            worker_id=worker_id,
            assignment_id=assignment.assignment_id,
            epoch=assignment.epoch,
            progress=progress,
        )
        timeout_seconds = min(_HEARTBEAT_SECONDS, assignment.heartbeat_seconds)
        return bool(_call(self._stub.Heartbeat, request, timeout_seconds).stop)

    def commit(
        self,
        worker_id: str,
        assignment: Leased,
        result: BlobName,
        report: Report,
        snapshots: Sequence[BlobName] = (),
    ) -> None:
        """Hand in what is uploaded, of a learner with its snapshots in the order of training.

        Raises:
            StaleLeaseError: too late.
            LearnerRejectedError: it is not the model's, or not finite.
        """
        request = worker_pb2.CommitResultRequest(
            worker_id=worker_id,
            assignment_id=assignment.assignment_id,
            epoch=assignment.epoch,
            result=blob_to_proto(result),
            report=worker_pb2.LearnerReport(
                loss=report.loss,
                train_seconds=report.train_seconds,
                total_seconds=report.total_seconds,
                bytes_received=report.bytes_received,
            ),
            snapshots=map(blob_to_proto, snapshots),
        )
        _call(self._stub.CommitResult, request, _COMMIT_SECONDS)

    def release(
        self,
        worker_id: str,
        assignment: Leased,
        error: str = "",
        *,
        over_limits: bool = False,
    ) -> None:
        """Give an assignment back: undone without an error, failed with one.

        Args:
            worker_id: this worker's.
            assignment: what this worker has the lease of.
            error: what went wrong.
            over_limits: it did not fail, but is not for this worker.
        """
        self._release(
            worker_id, assignment.assignment_id, assignment.epoch, error, over_limits=over_limits
        )

    def _release(
        self,
        worker_id: str,
        assignment_id: str,
        epoch: int,
        error: str,
        *,
        over_limits: bool = False,
    ) -> None:
        request = worker_pb2.ReleaseAssignmentRequest(
            worker_id=worker_id,
            assignment_id=assignment_id,
            epoch=epoch,
            error=error[:_MAX_ERROR_CHARACTERS],
            over_limits=over_limits,
        )
        _call(self._stub.ReleaseAssignment, request, _RELEASE_SECONDS)


def _call(method: Callable[..., Any], request: Any, timeout_seconds: float) -> Any:
    try:
        return method(request, timeout=timeout_seconds)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None


def _assignment(message: worker_pb2.Assignment, traceparent: str) -> Assignment | ScoringAssignment:
    if message.HasField("scoring"):
        return ScoringAssignment(
            assignment_id=message.assignment_id,
            epoch=message.lease.epoch,
            heartbeat_seconds=max(0.05, message.lease.heartbeat_seconds),
            initial_weights=blob_from_proto(message.initial_weights),
            task=scoring_from_proto(message.scoring),
            traceparent=traceparent,
        )
    return Assignment(
        assignment_id=message.assignment_id,
        run_id=message.run_id,
        learner_index=message.learner_index,
        epoch=message.lease.epoch,
        heartbeat_seconds=max(0.05, message.lease.heartbeat_seconds),
        initial_weights=blob_from_proto(message.initial_weights),
        shard=blob_from_proto(message.shard),
        task=task_from_proto(message.task),
        traceparent=traceparent,
    )


def with_secret(channel: grpc.Channel, secret: Callable[[], str]) -> grpc.Channel:
    """The channel, on which each call shows what `secret` says then; nothing while it is empty."""

    def entries() -> tuple[tuple[str, str], ...]:
        shown = secret()
        return ((WORKER_SECRET, shown),) if shown else ()

    return with_metadata(channel, entries)
