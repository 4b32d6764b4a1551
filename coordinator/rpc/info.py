"""Service information, and health probes at an address of their own."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import run_config_to_proto
from lipt.common.errors import ConfigError
from lipt.common.network.tls import split_address
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

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class InfoService(info_pb2_grpc.InfoServiceServicer):
    """This coordinator and the state of the whole service."""

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


# Kubernetes' kubelet calls without TLS and without a certificate, and while the data is
# still being opened, which may take minutes. Their answer is no secret.

# SERVING for as long as the process answers at all.
LIVENESS = "liveness"
# gRPC's own name for the whole server: SERVING once callers are served.
READINESS = ""


class Probes(health_pb2_grpc.HealthServicer):
    """Answers `Check`; not `Watch`, whose streams would have to be counted and ended."""

    def __init__(self) -> None:
        self.address = ""
        self._ready = False

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Be ready during the block."""
        self._ready = True
        try:
            yield
        finally:
            self._ready = False

    async def Check(
        self,
        request: health_pb2.HealthCheckRequest,
        context: Context,
    ) -> health_pb2.HealthCheckResponse:
        """Whether this process lives or is ready."""
        if request.service not in {LIVENESS, READINESS}:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"there is no health of {request.service!r}: ask for {LIVENESS!r}, or for "
                f"{READINESS!r}, which is readiness.",
            )
        serves = request.service == LIVENESS or self._ready
        answer = health_pb2.HealthCheckResponse
        return answer(status=answer.SERVING if serves else answer.NOT_SERVING)


@asynccontextmanager
async def answering_probes(listen: str | None) -> AsyncIterator[Probes]:
    """Answer probes at an address until the block ends; not at all where there is none."""
    probes = Probes()
    if listen is None:
        yield probes
        return
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    health_pb2_grpc.add_HealthServicer_to_server(probes, server)
    probes.address = bind(server, listen, None, flag="--health-listen")
    await server.start()
    logger.info("health on %s", probes.address)
    try:
        yield probes
    finally:
        await server.stop(None)


def bind(
    server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None, *, flag: str
) -> str:
    """Have a server listen at host:port once it is started; the address, with the port found.

    Raises:
        ConfigError: it is no address, or unavailable; names the flag.
    """
    host, _ = split_address(listen)
    try:
        port = (
            server.add_insecure_port(listen)
            if credentials is None
            else server.add_secure_port(listen, credentials)
        )
    except RuntimeError:
        raise ConfigError(
            f"{flag} {listen}: the address is in use, or is not this machine's. Choose another."
        ) from None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
