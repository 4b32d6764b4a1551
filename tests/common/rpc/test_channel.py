from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from lipt.common.rpc.channel import IdleWatchdog, open_channel
from lipt.v1 import run_pb2, run_pb2_grpc
from tests.serving import serving


class Unavailable(run_pb2_grpc.RunServiceServicer):
    """Refuses everything, and counts."""

    num_unary = num_streams = 0

    async def GetRun(self, request: Any, context: Any) -> run_pb2.GetRunResponse:
        self.num_unary += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        raise AssertionError

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[run_pb2.WatchRunResponse]:
        self.num_streams += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        yield run_pb2.WatchRunResponse()


async def test_plain_calls_are_repeated_by_grpc_and_streams_by_those_who_read_them() -> None:
    servicer = Unavailable()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented

    def ask(address: str) -> None:
        with open_channel(address) as channel:
            stub = run_pb2_grpc.RunServiceStub(channel)
            with pytest.raises(grpc.RpcError):
                stub.GetRun(run_pb2.GetRunRequest(), timeout=20)
            with pytest.raises(grpc.RpcError):
                list(stub.WatchRun(run_pb2.WatchRunRequest(), timeout=20))

    async with serving((run_pb2_grpc.add_RunServiceServicer_to_server, servicer)) as address:
        await asyncio.to_thread(ask, address)
    assert (servicer.num_unary, servicer.num_streams) == (4, 1)


class Call:
    """Gives two messages, then nothing until it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    def __iter__(self) -> Iterator[int]:
        yield from (0, 1)
        assert self.cancelled.wait(60)


def test_a_call_that_gives_nothing_is_ended() -> None:
    call, watchdog = Call(), IdleWatchdog(0.01)
    with watchdog.over(call):
        assert call.cancelled.wait(60)
    assert watchdog.expired


def test_only_the_waits_between_messages_count() -> None:
    call, watchdog = Call(), IdleWatchdog(0.01)
    with watchdog.over(call):
        for _ in watchdog.messages(call):
            # Longer than several waits may be.
            assert not call.cancelled.wait(0.05)
    assert watchdog.expired


def test_a_call_ends_with_the_block() -> None:
    call = Call()
    with IdleWatchdog(60.0).over(call):
        pass
    assert call.cancelled.is_set()
