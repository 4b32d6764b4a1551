"""`lipt.v1.WorkerService`: leases over gRPC."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from lipt.common.blobs.blob import blob_from_proto, blob_to_proto
from lipt.common.config.values import dump
from lipt.common.determinism import derive_seed
from lipt.common.errors import IncompatibleProtocolError, InvalidRequestError
from lipt.common.observability.logs import log_about
from lipt.common.observability.tracing import TRACEPARENT
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, enum_value, fill_message
from lipt.common.states import DivergedQuantity, Divergence, LearnerPhase
from lipt.coordinator.access.caller import current_caller, require_unguessable, worker_id_of
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.dispatch.dispatcher import Demand, Dispatcher
from lipt.coordinator.dispatch.intake import Intake
from lipt.coordinator.dispatch.leases import (
    LearnerGrant,
    LearnerLease,
    LeaseId,
    RangeGrant,
    RangeLease,
    lease_of,
)
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.rpc.handlers import Context
from lipt.coordinator.rpc.limits import shown_by
from lipt.coordinator.rpc.messages import protocol_version
from lipt.coordinator.runs.store import LearnerProgress
from lipt.coordinator.state.records import (
    FailureReason,
    LearnerFailure,
    LearnerRecord,
    LearnerResult,
    RunRecord,
)
from lipt.v1 import worker_pb2 as pb
from lipt.v1 import worker_pb2_grpc

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_MAX_WAIT_SECONDS = 60.0
_HEARTBEATS_PER_LEASE = 3


@dataclass(eq=False)
class WorkerService(worker_pb2_grpc.WorkerServiceServicer):
    """Leases and results of workers."""

    dispatcher: Dispatcher
    intake: Intake
    data: DataDescription
    stopping: asyncio.Event

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterResponse:
        if request.protocol.major != PROTOCOL_MAJOR:
            raise IncompatibleProtocolError(
                f"the worker speaks protocol {request.protocol.major}.{request.protocol.minor}, "
                f"this coordinator {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}. "
                "Install the same lipt on both."
            )
        require_unguessable(request.instance_id)
        worker_id = worker_id_of(request.instance_id)
        worker = WorkerRecord(
            worker_id,
            request.name or worker_id,
            request.device,
            dict(sorted(request.versions.items())),
            tuple(request.allowed_modules),
            caller=current_caller(),
            has_data=request.has_data,
            source=request.source,
        )
        self.dispatcher.workers.register(worker, request.instance_id)
        return pb.RegisterResponse(worker_id=worker_id, protocol=protocol_version())

    async def AcquireAssignment(
        self, request: pb.AcquireAssignmentRequest, context: Context
    ) -> pb.AcquireAssignmentResponse:
        self._require_worker(request.worker_id, context)
        wait_seconds = _wait_seconds(request.wait_seconds)
        granted = await unless(
            self.stopping, self.dispatcher.next_work(request.worker_id, wait_seconds=wait_seconds)
        )
        if granted is None:
            worker = self.dispatcher.workers.note_call(request.worker_id)
            return pb.AcquireAssignmentResponse(idle_reason=self.dispatcher.idle_reason(worker))
        self._log_about(granted.lease)
        if isinstance(granted, RangeGrant):
            return pb.AcquireAssignmentResponse(assignment=self._range(granted))
        if granted.run.traceparent:
            context.set_trailing_metadata(((TRACEPARENT, granted.run.traceparent),))
        return pb.AcquireAssignmentResponse(assignment=self._assignment(granted))

    async def Heartbeat(
        self, request: pb.HeartbeatRequest, context: Context
    ) -> pb.HeartbeatResponse:
        lease, progress = self._leased(request, context), request.progress
        phase = enum_value(pb.LearnerPhase.DESCRIPTOR, progress.phase)
        stop = self.dispatcher.heartbeat(
            lease,
            LearnerProgress(
                phase=LearnerPhase(phase if phase in set(LearnerPhase) else LearnerPhase.UNKNOWN),
                step=progress.step,
                loss=progress.loss if math.isfinite(progress.loss) else 0.0,
            ),
        )
        return pb.HeartbeatResponse(stop=stop)

    async def CommitResult(
        self, request: pb.CommitResultRequest, context: Context
    ) -> pb.CommitResultResponse:
        lease = self._leased(request, context)
        if isinstance(lease, RangeLease):
            range_blob = blob_from_proto(request.result)
            await self.intake.take_range(lease, range_blob, request.data_proof)
            return pb.CommitResultResponse()
        report = request.report
        # Of any values: what `require_report` refuses counts as an attempt.
        result = LearnerResult.model_construct(
            blob=blob_from_proto(request.result),
            loss=report.loss,
            train_seconds=report.train_seconds,
            bytes_received=report.bytes_received,
            snapshots=tuple(map(blob_from_proto, request.snapshots)),
            num_examples=report.num_examples,
            fingerprint=report.fingerprint,
        )
        await self.intake.take_learner(lease, result)
        return pb.CommitResultResponse()

    async def ReleaseAssignment(
        self, request: pb.ReleaseAssignmentRequest, context: Context
    ) -> pb.ReleaseAssignmentResponse:
        lease = self._leased(request, context)
        if request.over_limits:
            too_large = request.error[:1000] or "it is over its limits"
            await self.dispatcher.give_back(lease, too_large=too_large)
        elif request.error:
            await self.dispatcher.fail(lease, _failure(request))
        else:
            await self.dispatcher.give_back(lease)
        return pb.ReleaseAssignmentResponse()

    async def GetDemand(
        self, request: pb.GetDemandRequest, context: Context
    ) -> pb.GetDemandResponse:
        wait_seconds = _wait_seconds(request.wait_seconds)
        known, dispatcher = None, self.dispatcher
        if request.HasField("known"):
            had = request.known
            known = Demand(had.num_queued, had.num_leased, had.num_upcoming, had.num_ranges)
        current = await unless(
            self.stopping, dispatcher.wait_for_demand(known, wait_seconds=wait_seconds)
        )
        return pb.GetDemandResponse(**asdict(current or dispatcher.demand()))

    def _require_worker(self, worker_id: str, context: Context) -> None:
        self.dispatcher.workers.require(worker_id, shown_by(context))

    def _leased(self, request: Any, context: Context) -> LeaseId:
        self._require_worker(request.worker_id, context)
        lease = lease_of(request.assignment_id, request.epoch, request.worker_id)
        self._log_about(lease)
        return lease

    def _log_about(self, lease: LeaseId) -> None:
        log_about(assignment=lease.key, worker=lease.worker_id)
        if isinstance(lease, LearnerLease):
            log_about(run=lease.key.run_id, learner=lease.key.learner)

    def _range(self, grant: RangeGrant) -> pb.Assignment:
        return pb.Assignment(
            assignment_id=str(grant.lease.key),
            lease=self._lease(grant.lease.epoch),
            initial_weights=blob_to_proto(grant.scan.weights),
            scoring=fill_message(pb.ScoringTask(), dump(grant.task)),
        )

    def _lease(self, epoch: int) -> pb.Lease:
        seconds = self.dispatcher.leases.duration_seconds
        return pb.Lease(
            epoch=epoch, duration_seconds=seconds, heartbeat_seconds=seconds / _HEARTBEATS_PER_LEASE
        )

    def _assignment(self, granted: LearnerGrant) -> pb.Assignment:
        run, learner, lease = granted
        (_, initial), shard = run.theta, learner.shard
        return pb.Assignment(
            assignment_id=str(lease.key),
            run_id=run.run_id,
            learner_index=learner.index,
            lease=self._lease(lease.epoch),
            initial_weights=blob_to_proto(initial),
            shard=None if shard is None else blob_to_proto(shard),
            own_shard=self._own_shard(run, learner) if shard is None else None,
            task=fill_message(pb.LearnerTask(), dump(run.task(learner))),
        )

    def _own_shard(self, run: RunRecord, learner: LearnerRecord) -> pb.OwnShard:
        half, place = divmod(learner.index, len(run.sources))
        return pb.OwnShard(
            source=learner.own_source,
            seed=derive_seed(run.config.seed, "shards", place),
            half=half,
            names=self.data.target_names or self.data.class_names,
            flagged=self.data.flagged,
            number_columns=self.data.number_columns,
            category_columns=self.data.category_columns,
        )


def _wait_seconds(asked: float) -> float:
    if not 0.0 <= asked <= _MAX_WAIT_SECONDS:  # also refuses NaN
        raise InvalidRequestError(f"wait_seconds {asked} is outside 0..{_MAX_WAIT_SECONDS:g}.")
    return asked


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """The result of `work`; None if `stop` is set first, and `work` is then cancelled."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.wait({working})


def _failure(request: pb.ReleaseAssignmentRequest) -> LearnerFailure:
    sent = request.divergence
    quantity = enum_value(pb.DivergedQuantity.DESCRIPTOR, sent.quantity)
    if quantity not in set(DivergedQuantity):
        return LearnerFailure(reason=FailureReason.ERROR, detail=request.error[:1000])
    return LearnerFailure(
        reason=FailureReason.DIVERGED,
        detail=request.error[:1000],
        divergence=Divergence(DivergedQuantity(quantity), sent.step, sent.num_steps),
    )
