"""A server and a client of the contract in one process, whose spans are all remembered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from lipt.common.errors import BudgetError
from lipt.common.observability.logs import Events
from lipt.common.observability.tracing import current_traceparent, received, span
from lipt.common.rpc.channel import open_channel, traced
from lipt.common.rpc.handlers import Interceptor, refusals, tracing
from lipt.v1 import run_pb2, run_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.remembered_spans import Remembered, remembering

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"
CREATE = "lipt.v1.RunService/CreateRun"


class _Service(run_pb2_grpc.RunServiceServicer, worker_pb2_grpc.WorkerServiceServicer):
    """Keeps the trace that each call was made in; refuses to cancel."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def CreateRun(self, request: Any, context: Any) -> Any:
        self.seen.append(current_traceparent())
        return run_pb2.CreateRunResponse()

    async def CancelRun(self, request: Any, context: Any) -> Any:
        raise BudgetError("budget 1 is outside 1..0.")

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.seen.append(current_traceparent())
        for _ in range(3):
            yield run_pb2.WatchRunResponse()

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        self.seen.append(current_traceparent())
        return worker_pb2.HeartbeatResponse()


def new_service() -> Any:
    # It has fewer methods than the contract.
    kind: Any = _Service
    return kind()


@asynccontextmanager
async def serving(service: Any) -> AsyncIterator[str]:
    steps = (refusals(Events()), tracing)
    server = grpc.aio.server(interceptors=[Interceptor(lambda _: steps)])
    run_pb2_grpc.add_RunServiceServicer_to_server(service, server)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def asked(
    service: Any, ask: Callable[[grpc.Channel], object], *, plain: bool = False
) -> Remembered:
    """The spans of what `ask` does in a span "script", or without any client's where `plain`."""
    with remembering() as spans:
        async with serving(service) as address:

            def talk() -> None:
                if plain:
                    with grpc.insecure_channel(address) as channel:
                        ask(channel)
                    return
                with open_channel(address) as channel, span("script"):
                    ask(channel)

            await asyncio.to_thread(talk)
    return spans


def create(channel: grpc.Channel, **options: Any) -> None:
    run_pb2_grpc.RunServiceStub(channel).CreateRun(
        run_pb2.CreateRunRequest(), timeout=30, **options
    )


async def test_a_call_is_a_span_on_either_side_of_its_callers() -> None:
    service = new_service()
    with remembering() as spans:
        async with serving(service) as address:

            def talk() -> None:
                with open_channel(address) as channel, span("script"):
                    create(channel)
                    run_pb2_grpc.RunServiceStub(channel).CreateRun.future(
                        run_pb2.CreateRunRequest(), timeout=30
                    ).result()

            await asyncio.to_thread(talk)
    assert spans.names() == [CREATE] * 4 + ["script"]
    script = spans["script"].context
    finished = spans.all()
    clients = [each for each in finished if each.kind.name == "CLIENT"]
    servers = [each for each in finished if each.kind.name == "SERVER"]
    assert [client.parent for client in clients] == [script] * 2
    assert {server.parent.span_id for server in servers if server.parent} == {
        client.context.span_id for client in clients
    }
    assert {each.context.trace_id for each in finished} == {script.trace_id}
    assert clients[0].attributes == {
        "rpc.system": "grpc",
        "rpc.service": "lipt.v1.RunService",
        "rpc.method": "CreateRun",
        "rpc.grpc.status_code": 0,
    }


async def test_calls_that_wait_or_come_again_and_again_belong_to_the_trace_without_a_span() -> None:
    service = new_service()

    def ask(channel: grpc.Channel) -> None:
        request = worker_pb2.HeartbeatRequest()
        worker_pb2_grpc.WorkerServiceStub(channel).Heartbeat(request, timeout=30)
        watched = run_pb2_grpc.RunServiceStub(channel).WatchRun(run_pb2.WatchRunRequest())
        assert len(list(watched)) == 3
        again = run_pb2_grpc.RunServiceStub(channel).WatchRun(run_pb2.WatchRunRequest())
        assert len(list(again)) == 3

    spans = await asked(service, ask)
    assert spans.names() == ["script"]
    script = spans["script"].context
    assert service.seen == [f"00-{script.trace_id:032x}-{script.span_id:016x}-01"] * 3


async def test_a_refused_call_fails_on_either_side_without_the_peers_words() -> None:
    def ask(channel: grpc.Channel) -> None:
        with pytest.raises(grpc.RpcError, match="budget 1 is outside"):
            run_pb2_grpc.RunServiceStub(channel).CancelRun(run_pb2.CancelRunRequest(), timeout=30)

    spans = await asked(new_service(), ask)
    finished = spans.all()
    kinds = {each.kind.name: each.attributes for each in finished if each.kind.name != "INTERNAL"}
    assert kinds["SERVER"]["error.type"] == "INVALID_BUDGET"
    assert kinds["CLIENT"]["error.type"] == "INVALID_ARGUMENT"
    assert {each["rpc.grpc.status_code"] for each in kinds.values()} == {3}


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("traceparent", "garbage"),),
        (("traceparent", f"00-{'0' * 32}-{SPAN}-01"),),
        (("traceparent", GIVEN + "-" + "x" * 5000),),
    ],
    ids=["none", "garbage", "no trace", "long"],
)
async def test_a_call_without_a_readable_trace_begins_its_own(
    metadata: tuple[tuple[str, str], ...],
) -> None:
    service = new_service()
    spans = await asked(service, lambda channel: create(channel, metadata=metadata), plain=True)
    (call,) = spans.all()
    assert call.parent is None
    assert TRACE not in service.seen[0]


def test_of_two_traces_none_is_taken() -> None:
    with remembering():
        assert received((("x", "y"), ("traceparent", GIVEN))) == GIVEN
        assert received((("traceparent", GIVEN), ("traceparent", GIVEN))) == ""
        assert received(None) == ""


def test_the_channel_of_a_process_that_does_not_trace_is_left_as_it_is() -> None:
    with grpc.insecure_channel("127.0.0.1:9") as channel:
        assert traced(channel) is channel
        with remembering():
            assert traced(channel) is not channel
