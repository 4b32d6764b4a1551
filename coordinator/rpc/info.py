"""`lipt.v1.InfoService`: who is answering, with what data and which workers."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lipt.common.config.messages import run_config_to_proto
from lipt.common.config.run_config import RunConfig
from lipt.common.process.devices import versions
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.rpc.messages import dataset_view, protocol_version
from lipt.coordinator.runs.store import RunStore
from lipt.v1 import info_pb2 as pb
from lipt.v1 import info_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class InfoService(info_pb2_grpc.InfoServiceServicer):
    """What `lipt doctor` calls."""

    def __init__(
        self,
        data: DataDescription,
        dispatcher: Dispatcher,
        store: RunStore,
        *,
        default_run: RunConfig,
        device: str,
    ) -> None:
        self._data = data
        self._dispatcher = dispatcher
        self._store = store
        self._default_run = default_run
        self._device = device

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        """Describe this coordinator."""
        return pb.GetInfoResponse(
            protocol=protocol_version(),
            versions=versions(),
            dataset=dataset_view(self._data),
            default_run=run_config_to_proto(self._default_run),
            workers=map(self._worker, self._dispatcher.alive()),
            device=self._device,
        )

    def _worker(self, worker: WorkerRecord) -> pb.WorkerInfo:
        held = self._dispatcher.leases.held_by(worker.worker_id)
        return pb.WorkerInfo(
            worker_id=worker.worker_id,
            name=worker.name,
            device=worker.device,
            versions=worker.versions,
            assignment=f"{self._store.find(held.run_id).name}/{held.learner}" if held else "",
            seconds_since_heard=self._dispatcher.seconds_since_heard(worker),
            idle_reason=self._dispatcher.why_idle(worker),
        )
