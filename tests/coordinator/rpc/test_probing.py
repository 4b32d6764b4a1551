"""What probes hear, over real gRPC without TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lipt.common.errors import ConfigError
from lipt.coordinator.rpc.info import Probes, answering_probes


@asynccontextmanager
async def probed() -> AsyncIterator[tuple[Probes, Any]]:
    async with (
        answering_probes("127.0.0.1:0") as probes,
        grpc.aio.insecure_channel(probes.address) as channel,
    ):
        yield probes, health_pb2_grpc.HealthStub(channel)


async def check(health: Any, service: str) -> int:
    answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def test_other_names_are_not_found_and_streams_are_not_served() -> None:
    async with probed() as (_, health):
        with pytest.raises(grpc.aio.AioRpcError, match="ask for 'liveness'") as unknown:
            await check(health, "lipt.v1.RunService")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as watched:
            await health.Watch(health_pb2.HealthCheckRequest()).read()
        assert watched.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_address_that_is_in_use_is_refused_with_its_flag() -> None:
    async with answering_probes("127.0.0.1:0") as probes:
        with pytest.raises(ConfigError, match=rf"--health-listen {probes.address}: .* in use"):
            async with answering_probes(probes.address):
                pytest.fail("it was listened on")
