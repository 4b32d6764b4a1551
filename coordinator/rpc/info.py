"""`lipt.v1.InfoService`: who is answering, with what data and which workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import run_config_to_proto
from lipt.common.process.devices import versions
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.rpc.messages import dataset_view, protocol_version
from lipt.coordinator.rpc.watching import (
    DEFAULT_INTERVAL_SECONDS,
    DEFAULT_NUM_RUNS,
    Watching,
)
from lipt.v1 import info_pb2 as pb
from lipt.v1 import info_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class InfoService(info_pb2_grpc.InfoServiceServicer):
    """What `lipt doctor` calls."""

    def __init__(
        self,
        data: DataDescription,
        *,
        watching: Watching,
        default_run: RunConfig,
        device: str,
    ) -> None:
        self._data = data
        self._watching = watching
        self._default_run = default_run
        self._device = device

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        """Describe this coordinator."""
        return self.describe()

    def describe(self) -> pb.GetInfoResponse:
        """This coordinator, its data and its workers."""
        return pb.GetInfoResponse(
            protocol=protocol_version(),
            versions=versions(),
            dataset=dataset_view(self._data),
            default_run=run_config_to_proto(self._default_run),
            workers=self._watching.workers(),
            device=self._device,
        )

    async def WatchService(
        self, request: pb.WatchServiceRequest, context: Context
    ) -> AsyncIterator[pb.WatchServiceResponse]:
        """Show how the whole service stands, at every change until it stops."""
        answers = self._watching.answers(
            interval_seconds=request.interval_seconds or DEFAULT_INTERVAL_SECONDS,
            num_runs=request.num_runs or DEFAULT_NUM_RUNS,
        )
        async for answer in answers:
            yield answer
