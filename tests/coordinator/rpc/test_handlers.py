import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from lipt.common.errors import (
    BudgetError,
    InvalidRequestError,
    LiptError,
    UnknownRunError,
    error_class,
    error_classes,
    from_rpc_error,
)
from lipt.common.observability.tracing import current_traceparent, span
from lipt.common.rpc.channel import open_channel
from lipt.coordinator.rpc.handlers import Interceptor, tracing
from lipt.v1 import blob_pb2, blob_pb2_grpc, run_pb2, run_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.remembered_spans import Remembered, remembering
from tests.serving import serving

METHOD = "/lipt.v1.InfoService/GetInfo"


class Services:
    num_made = 0

    async def find(self, details: grpc.HandlerCallDetails) -> Any:
        self.num_made += 1
        return object() if details.method == METHOD else None


@pytest.mark.parametrize(("method", "num_made"), [(METHOD, 1), ("/lipt.v1.InfoService/No", 3)])
async def test_handlers_are_cached_except_for_unknown_methods(method: str, num_made: int) -> None:
    unknown, services = list[None](), Services()
    interceptor = Interceptor(lambda _: (), on_unknown=lambda: unknown.append(None))
    details = cast("grpc.HandlerCallDetails", type("Details", (), {"method": method}))
    found = {await interceptor.intercept_service(services.find, details) for _ in range(3)}
    assert len(found) == 1
    assert services.num_made == num_made
    assert len(interceptor._handlers) + len(unknown) // 3 == 1


# What can be raised: a family has no reason of its own.
ERRORS = [cls for cls in error_classes() if error_class(cls.reason) is cls]


class Raising(run_pb2_grpc.RunServiceServicer, blob_pb2_grpc.BlobServiceServicer):
    error: Exception = LiptError("unset")

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def WriteBlob(self, request_iterator: Any, context: Any) -> Any:
        self.seen.extend([request async for request in request_iterator])

    async def GetRun(self, request: Any, context: Any) -> run_pb2.GetRunResponse:
        raise self.error

    async def ReadBlob(
        self, request: Any, context: Any
    ) -> AsyncIterator[blob_pb2.ReadBlobResponse]:
        yield blob_pb2.ReadBlobResponse()
        raise self.error


@pytest.fixture
async def servicer() -> AsyncIterator[tuple[Raising, str]]:
    servicer = Raising()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented
    async with serving(
        (run_pb2_grpc.add_RunServiceServicer_to_server, servicer),
        (blob_pb2_grpc.add_BlobServiceServicer_to_server, servicer),
    ) as address:
        yield servicer, address


def get_run(address: str) -> None:
    with open_channel(address) as channel:
        run_pb2_grpc.RunServiceStub(channel).GetRun(run_pb2.GetRunRequest(), timeout=20)


def read_blob(address: str) -> None:
    with open_channel(address) as channel:
        list(blob_pb2_grpc.BlobServiceStub(channel).ReadBlob(blob_pb2.ReadBlobRequest()))


@pytest.mark.parametrize("call", [get_run, read_blob])
@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.reason)
async def test_every_error_arrives_as_the_same_class(
    servicer: tuple[Raising, str], cls: type[LiptError], call: Any
) -> None:
    if cls.code is grpc.StatusCode.UNAVAILABLE:
        pytest.skip("raised by clients alone: a server that answers is reachable")
    servicer[0].error = cls("weights of 3 tensors; give 4")
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.to_thread(call, servicer[1])
    error = from_rpc_error(caught.value)
    assert type(error) is cls
    assert str(error) == "weights of 3 tensors; give 4"
    assert caught.value.code() is cls.code  # type: ignore[attr-defined]


async def refused(servicer: tuple[Raising, str], error: Exception) -> LiptError:
    servicer[0].error = error
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.to_thread(get_run, servicer[1])
    return from_rpc_error(caught.value)


async def test_an_unexpected_error_has_a_number_and_no_details(
    servicer: tuple[Raising, str],
) -> None:
    error = await refused(servicer, RuntimeError("a path and a password"))
    assert type(error) is LiptError
    assert "incident" in str(error)
    assert "password" not in str(error)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_undecodable_message_is_an_invalid_request(
    servicer: tuple[Raising, str], streams: bool
) -> None:
    async with grpc.aio.insecure_channel(servicer[1]) as channel:
        method: Any = channel.unary_unary("/lipt.v1.RunService/GetRun")
        request: Any = b"\xff"
        if streams:
            method = channel.stream_unary("/lipt.v1.BlobService/WriteBlob")
            request = iter([b"", b"\xff"])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request, timeout=20)
    error = from_rpc_error(caught.value)
    assert isinstance(error, InvalidRequestError)
    assert "cannot be read" in str(error)
    assert "proto/lipt/v1" in str(error)
    assert not servicer[0].seen


async def test_a_long_error_keeps_its_beginning_and_its_remedy(
    servicer: tuple[Raising, str],
) -> None:
    sentence = f"there is no run {'é' * 50_000}. Start one: lipt run start"
    error = await refused(servicer, UnknownRunError(sentence))
    assert isinstance(error, UnknownRunError)
    assert str(error).startswith("there is no run éé")
    assert str(error).endswith("éé. Start one: lipt run start")
    assert len(str(error).encode()) < 2000


CREATE = "lipt.v1.RunService/CreateRun"


class _Service(run_pb2_grpc.RunServiceServicer, worker_pb2_grpc.WorkerServiceServicer):
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


@pytest.fixture
def service() -> Any:
    # It has fewer methods than the contract.
    kind: Any = _Service
    return kind()


async def asked(service: Any, ask: Callable[[grpc.Channel], object]) -> Remembered:
    """The spans of what `ask` does in a span "script"."""

    def talk(address: str) -> None:
        with open_channel(address) as channel, span("script"):
            ask(channel)

    with remembering() as spans:
        async with serving(
            (run_pb2_grpc.add_RunServiceServicer_to_server, service),
            (worker_pb2_grpc.add_WorkerServiceServicer_to_server, service),
            steps=[tracing],
        ) as address:
            await asyncio.to_thread(talk, address)
    return spans


async def test_a_call_has_a_client_and_a_server_span(service: Any) -> None:
    def ask(channel: grpc.Channel) -> None:
        create = run_pb2_grpc.RunServiceStub(channel).CreateRun
        create(run_pb2.CreateRunRequest(), timeout=30)
        create.future(run_pb2.CreateRunRequest(), timeout=30).result()

    spans = await asked(service, ask)
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


async def test_polls_and_heartbeats_have_no_span(service: Any) -> None:
    def ask(channel: grpc.Channel) -> None:
        request = worker_pb2.HeartbeatRequest()
        worker_pb2_grpc.WorkerServiceStub(channel).Heartbeat(request, timeout=30)
        for _ in range(2):
            watched = run_pb2_grpc.RunServiceStub(channel).WatchRun(run_pb2.WatchRunRequest())
            assert len(list(watched)) == 3

    spans = await asked(service, ask)
    assert spans.names() == ["script"]
    script = spans["script"].context
    assert service.seen == [f"00-{script.trace_id:032x}-{script.span_id:016x}-01"] * 3


async def test_a_refused_call_fails_both_spans_without_the_peer_s_text(service: Any) -> None:
    def ask(channel: grpc.Channel) -> None:
        with pytest.raises(grpc.RpcError, match="budget 1 is outside"):
            run_pb2_grpc.RunServiceStub(channel).CancelRun(run_pb2.CancelRunRequest(), timeout=30)

    finished = (await asked(service, ask)).all()
    kinds = {each.kind.name: each.attributes for each in finished if each.kind.name != "INTERNAL"}
    assert kinds["SERVER"]["error.type"] == "INVALID_BUDGET"
    assert kinds["CLIENT"]["error.type"] == "INVALID_ARGUMENT"
    assert {each["rpc.grpc.status_code"] for each in kinds.values()} == {3}
