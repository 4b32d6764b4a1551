"""`lipt.v1.InfoService`: who is answering, with what data and which workers."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lipt.common.devices import device_name, resolve_device, versions
from lipt.common.rpc.wire import run_config_to_proto
from lipt.coordinator.app import App
from lipt.coordinator.rpc.messages import dataset_view, protocol_version
from lipt.v1 import info_pb2 as pb
from lipt.v1 import info_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class InfoService(info_pb2_grpc.InfoServiceServicer):
    """What `lipt doctor` calls."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._device = device_name(resolve_device(app.settings.device))

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        """Describe this coordinator."""
        app, dispatcher = self._app, self._app.dispatcher
        workers = []
        for worker in dispatcher.alive():
            key = dispatcher.leases.held_by(worker.worker_id)
            workers.append(
                pb.WorkerInfo(
                    worker_id=worker.worker_id,
                    name=worker.name,
                    device=worker.device,
                    versions=worker.versions,
                    assignment=f"{app.book.find(key[0]).name}/{key[1]}" if key else "",
                    seconds_since_heard=dispatcher.seconds_since_heard(worker),
                )
            )
        return pb.GetInfoResponse(
            protocol=protocol_version(),
            versions=versions(),
            dataset=dataset_view(app.data),
            default_run=run_config_to_proto(app.settings.run),
            workers=workers,
            device=self._device,
        )
