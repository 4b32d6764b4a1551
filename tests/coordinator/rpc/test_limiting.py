"""Limits on a real port: refusals are statuses, and end with what caused them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import TooManyCallsError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.status import from_rpc_error
from lipt.coordinator.app import App
from lipt.coordinator.server import serving
from lipt.trainer.client.connection import Connection
from lipt.v1 import (
    blob_pb2_grpc,
    info_pb2,
    info_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from tests.coordinator.fakes import make_settings, opened
from tests.serving import own_user_channel

_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


@dataclass(frozen=True)
class Served:
    app: App
    address: str

    @property
    def events(self) -> Events:
        return self.app.events


@asynccontextmanager
async def served(directory: Path, *, in_all: int = 8, **per_peer: float) -> AsyncIterator[Served]:
    limits = {"per_peer": per_peer, "max_concurrent_calls": in_all}
    async with (
        opened(make_settings(directory, limits=limits)) as app,
        serving(app) as address,
    ):
        yield Served(app, address)


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with own_user_channel(address, _OPTIONS) as channel:
        yield channel


def watch(channel: grpc.aio.Channel) -> Any:
    stub: Any = run_pb2_grpc.RunServiceStub(channel)
    return stub.WatchRun(run_pb2.WatchRunRequest(run_id="mine"))


async def info(channel: grpc.aio.Channel) -> Any:
    stub: Any = info_pb2_grpc.InfoServiceStub(channel)
    return await stub.GetInfo(info_pb2.GetInfoRequest(), timeout=60)


async def poll(channel: grpc.aio.Channel) -> Any:
    """A long poll that is under way."""
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    secret = secrets.token_hex(16)
    registered = await stub.Register(
        worker_pb2.RegisterRequest(instance_id=secret, protocol=worker_pb2.ProtocolVersion(major=1))
    )
    request = worker_pb2.AcquireAssignmentRequest(worker_id=registered.worker_id, wait_seconds=60.0)
    return stub.AcquireAssignment(request, metadata=(("lipt-worker-secret", secret),))


async def refusal_of(call: Any) -> TooManyCallsError | None:
    """Why a call was refused; None where it was not."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        known = from_rpc_error(error)
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return known if isinstance(known, TooManyCallsError) else None
    return None


async def test_stream_beyond_the_limit_is_refused_until_one_ends(tmp_path: Path) -> None:
    async with (
        served(tmp_path, max_streams=1) as coordinator,
        connected(coordinator.address) as channel,
    ):
        runs: Any = run_pb2_grpc.RunServiceStub(channel)
        await runs.CreateRun(run_pb2.CreateRunRequest(name="mine"))
        first = watch(channel)
        await first.read()
        refusal = await refusal_of(watch(channel).read())
        assert refusal is not None
        assert refusal.retry_after_seconds == 1.0
        await info(channel)  # is no stream
        async with connected(coordinator.address) as other:
            await watch(other).read()
        first.cancel()
        async with asyncio.timeout(60):
            while await refusal_of(watch(channel).read()) is not None:
                pass  # the server has not noticed yet


async def test_health_is_answered_where_no_call_is(tmp_path: Path) -> None:
    async with served(tmp_path) as coordinator, AsyncExitStack() as stack:
        entering = [stack.enter_async_context(connected(coordinator.address)) for _ in range(8)]
        channels = [await channel for channel in entering]
        polls = [await poll(channel) for channel in channels]
        async with asyncio.timeout(60):
            while coordinator.app.dispatcher.num_waiting() < len(polls):  # noqa: ASYNC110
                await asyncio.sleep(0)
        refusal = await refusal_of(info(channels[0]))
        assert "8 calls are under way, 8 may be in all" in str(refusal)
        health: Any = health_pb2_grpc.HealthStub(channels[0])
        for _ in range(100):
            await health.Check(health_pb2.HealthCheckRequest())
        for call in polls:
            call.cancel()


# Two calls at once, two that wait for up to a second, and what comes then is refused.
SLOW = {"calls_per_second": 2}
NUM_AT_ONCE = 6


def at_once(act: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        list(pool.map(act, range(NUM_AT_ONCE)))


async def test_trainers_call_again_when_they_are_told_to(tmp_path: Path) -> None:
    async with served(tmp_path, in_all=100, **SLOW) as coordinator:
        connection = Connection(coordinator.address, None)
        await asyncio.to_thread(
            at_once,
            lambda _: connection.unary(lambda of: of.info.GetInfo, info_pb2.GetInfoRequest()),
        )
        connection.close()
        assert coordinator.events.count(EventKind.CALL_REFUSED, "TOO_MANY_CALLS") >= 1


@pytest.mark.slow
async def test_transfers_call_again_when_they_are_told_to(tmp_path: Path) -> None:
    async with served(tmp_path, in_all=100, **SLOW) as coordinator:
        with open_channel(coordinator.address) as channel:
            transfers = Transfers(blob_pb2_grpc.BlobServiceStub(channel))
            await asyncio.to_thread(at_once, lambda number: transfers.upload(b"x%d" % number))
        assert coordinator.events.count(EventKind.CALL_REFUSED, "TOO_MANY_CALLS") >= 1
