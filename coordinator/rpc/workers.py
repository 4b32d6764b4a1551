"""`lipt.v1.WorkerService`: leases over gRPC."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import grpc.aio

from lipt.common.blobs.messages import blob_from_proto, blob_to_proto
from lipt.common.config.messages import task_to_proto
from lipt.common.errors import (
    IncompatibleProtocolError,
    InvalidRequestError,
)
from lipt.common.rpc.messages import enum_value
from lipt.common.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from lipt.common.states import LearnerPhase
from lipt.coordinator.access.worker_identity import require_unguessable
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.intake import LearnerIntake
from lipt.coordinator.rpc.messages import protocol_version
from lipt.coordinator.rpc.peers import peer_of
from lipt.coordinator.rpc.proving import shown_by
from lipt.coordinator.rpc.stopping import unless
from lipt.coordinator.runs.store import LearnerProgress
from lipt.coordinator.runs.transitions import LearnerResult
from lipt.coordinator.state.records import LearnerRecord, RunRecord
from lipt.coordinator.storage.allowances import Allowances
from lipt.v1 import worker_pb2 as pb
from lipt.v1 import worker_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_WAIT_SECONDS = 60.0
_HEARTBEATS_PER_LEASE = 3
# From here on a worker shows its instance id with every call.
_MINOR_OF_SECRETS = 3


class WorkerService(worker_pb2_grpc.WorkerServiceServicer):
    """What workers call."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        intake: LearnerIntake,
        stopping: asyncio.Event,
        allowances: Allowances | None = None,
    ) -> None:
        """Serve workers; `allowances` is told as which peer each of them calls."""
        self._allowances = allowances
        self._dispatcher = dispatcher
        self._intake = intake
        self._stopping = stopping

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterResponse:
        """Make a worker known."""
        if request.protocol.major != PROTOCOL_MAJOR:
            raise IncompatibleProtocolError(
                f"the worker speaks protocol {request.protocol.major}.{request.protocol.minor}, "
                f"this coordinator {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}. "
                "Install the same lipt on both."
            )
        shown = shown_by(context)
        if request.protocol.minor >= _MINOR_OF_SECRETS:
            require_unguessable(request.instance_id)
            shown = replace(shown, secret=request.instance_id)
        worker = self._dispatcher.workers.register(
            request.instance_id,
            name=request.name,
            device=request.device,
            versions=request.versions,
            allowed_modules=tuple(request.allowed_modules),
            shown=shown,
            minor=request.protocol.minor,
        )
        return pb.RegisterResponse(worker_id=worker.worker_id, protocol=protocol_version())

    async def AcquireAssignment(
        self, request: pb.AcquireAssignmentRequest, context: Context
    ) -> pb.AcquireAssignmentResponse:
        """Wait for a learner to train."""
        self._require_worker(request.worker_id, context)
        wait_seconds = request.wait_seconds
        if not 0.0 <= wait_seconds <= _MAX_WAIT_SECONDS:  # also refuses NaN
            raise InvalidRequestError(
                f"wait_seconds {wait_seconds} is outside 0..{_MAX_WAIT_SECONDS:g}."
            )
        granted = await unless(
            self._stopping, self._dispatcher.acquire(request.worker_id, wait_seconds=wait_seconds)
        )
        if granted is None:
            worker = self._dispatcher.workers.heard(request.worker_id)
            return pb.AcquireAssignmentResponse(idle_reason=self._dispatcher.why_idle(worker))
        self._note(request.worker_id, context)
        return pb.AcquireAssignmentResponse(assignment=self._assignment(*granted))

    async def Heartbeat(
        self, request: pb.HeartbeatRequest, context: Context
    ) -> pb.HeartbeatResponse:
        """Keep a lease."""
        self._require_worker(request.worker_id, context)
        progress = request.progress
        stop = self._dispatcher.heartbeat(
            request.worker_id,
            AssignmentKey.parse(request.assignment_id),
            request.epoch,
            LearnerProgress(
                phase=_phase(progress.phase),
                step=progress.step,
                loss=progress.loss if math.isfinite(progress.loss) else 0.0,
            ),
        )
        self._note(request.worker_id, context)
        return pb.HeartbeatResponse(stop=stop)

    async def CommitResult(
        self, request: pb.CommitResultRequest, context: Context
    ) -> pb.CommitResultResponse:
        """Check and take a learner."""
        self._require_worker(request.worker_id, context)
        key = AssignmentKey.parse(request.assignment_id)
        report = request.report
        result = LearnerResult(
            blob_from_proto(request.result),
            loss=report.loss,
            train_seconds=report.train_seconds,
            bytes_received=report.bytes_received,
            snapshots=tuple(map(blob_from_proto, request.snapshots)),
        )
        await self._intake.take(request.worker_id, key, request.epoch, result)
        return pb.CommitResultResponse()

    async def ReleaseAssignment(
        self, request: pb.ReleaseAssignmentRequest, context: Context
    ) -> pb.ReleaseAssignmentResponse:
        """Take a learner back undone."""
        self._require_worker(request.worker_id, context)
        held = (request.worker_id, AssignmentKey.parse(request.assignment_id), request.epoch)
        if request.over_limits:
            await self._dispatcher.decline(*held, request.error[:1000])
        elif request.error:
            await self._dispatcher.fail(*held, request.error[:1000])
        else:
            await self._dispatcher.release(*held)
        return pb.ReleaseAssignmentResponse()

    def _require_worker(self, worker_id: str, context: Context) -> None:
        self._dispatcher.workers.require(worker_id, shown_by(context))

    def _note(self, worker_id: str, context: Context) -> None:
        # Of those that have a learner only: nobody else's files are waited for.
        if self._allowances is not None:
            self._allowances.note(worker_id, peer_of(context))

    def _assignment(self, run: RunRecord, learner: LearnerRecord) -> pb.Assignment:
        lease_seconds = self._dispatcher.leases.duration_seconds
        if run.initial_weights is None:
            raise ValueError(f"run {run.run_id} hands out learners before its weights exist")
        return pb.Assignment(
            assignment_id=str(AssignmentKey(run.run_id, learner.index)),
            run_id=run.run_id,
            learner_index=learner.index,
            lease=pb.Lease(
                epoch=learner.epoch,
                duration_seconds=lease_seconds,
                heartbeat_seconds=lease_seconds / _HEARTBEATS_PER_LEASE,
            ),
            initial_weights=blob_to_proto(run.initial_weights),
            shard=blob_to_proto(learner.shard),
            task=task_to_proto(run.task(learner)),
        )


def _phase(number: int) -> LearnerPhase:
    value = enum_value(pb.LearnerPhase.DESCRIPTOR, number)
    return LearnerPhase(value) if value in set(LearnerPhase) else LearnerPhase.UNKNOWN
