from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import grpc
import grpc.aio
import pytest

from lipt.common.access.roles import EVERY_ROLE, Role
from lipt.common.errors import (
    InvalidRequestError,
    LiptError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import Meters
from lipt.common.rpc.status import from_rpc_error
from lipt.coordinator.access.caller import Caller, current_caller
from lipt.coordinator.access.identification import Shown
from lipt.coordinator.rpc.interceptor import CallInterceptor
from lipt.coordinator.rpc.limits import PeerLimits
from lipt.coordinator.settings import LimitSettings
from lipt.v1 import blob_pb2, blob_pb2_grpc, run_pb2, run_pb2_grpc


def identify(shown: Shown) -> Caller:
    """Whoever shows `Bearer NAME ROLE...` is NAME, with these roles."""
    if shown.authorization is None:
        raise UnauthenticatedError("nobody. Be somebody.")
    _, name, *roles = shown.authorization.split()
    return Caller(name, name, frozenset(map(Role, roles)) or EVERY_ROLE)


class Naming(run_pb2_grpc.RunServiceServicer, blob_pb2_grpc.BlobServiceServicer):
    """Answers with who calls."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.several = asyncio.Barrier(2)

    async def GetRun(self, request: Any, context: Any) -> run_pb2.GetRunResponse:
        self.requests.append(request)
        if request.run_id == "several":
            await self.several.wait()
        return run_pb2.GetRunResponse(run=run_pb2.Run(name=current_caller().name))

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[run_pb2.WatchRunResponse]:
        self.requests.append(request)
        for _ in range(2):
            yield run_pb2.WatchRunResponse(run=run_pb2.Run(name=current_caller().name))

    async def WriteBlob(self, request_iterator: Any, context: Any) -> blob_pb2.WriteBlobResponse:
        self.requests += [request async for request in request_iterator]
        return blob_pb2.WriteBlobResponse(blob=blob_pb2.BlobRef(sha256=current_caller().name))


class Served:
    def __init__(
        self, channel: grpc.aio.Channel, naming: Naming, events: Events, calls: CallInterceptor
    ) -> None:
        self.channel, self.naming, self.events, self.calls = channel, naming, events, calls
        self.runs: Any = run_pb2_grpc.RunServiceStub(channel)
        self.blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    events = Events()
    limits = PeerLimits(LimitSettings(), clock=monotonic)
    calls = CallInterceptor(identify, events, Meters(), limits)
    server = grpc.aio.server(interceptors=[calls])
    naming = Naming()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented
    run_pb2_grpc.add_RunServiceServicer_to_server(naming, server)
    blob_pb2_grpc.add_BlobServiceServicer_to_server(naming, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(channel, naming, events, calls)
    await server.stop(None)


def called(*words: str) -> Any:
    return (("authorization", " ".join(("Bearer", *words))),)


async def refusal(call: Any) -> LiptError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def test_handlers_of_every_kind_know_their_caller() -> None:
    async with serving() as served:
        answer = await served.runs.GetRun(run_pb2.GetRunRequest(), metadata=called("ann"))
        assert answer.run.name == "ann"
        watching = served.runs.WatchRun(run_pb2.WatchRunRequest(), metadata=called("bob"))
        assert [item.run.name async for item in watching] == ["bob", "bob"]
        request = blob_pb2.WriteBlobRequest()
        written = await served.blobs.WriteBlob(iter([request, request]), metadata=called("cid"))
        assert written.blob.sha256 == "cid"
        assert len(served.naming.requests) == 4


async def test_callers_at_the_same_time_are_not_taken_for_each_other() -> None:
    async with serving() as served:
        request = run_pb2.GetRunRequest(run_id="several")
        answers = await asyncio.gather(
            *(served.runs.GetRun(request, metadata=called(name)) for name in ("ann", "bob"))
        )
        assert [answer.run.name for answer in answers] == ["ann", "bob"]


@pytest.mark.parametrize(
    ("path", "metadata", "kind"),
    [
        ("RunService/GetRun", (), UnauthenticatedError),
        ("RunService/WatchRun", (), UnauthenticatedError),
        ("BlobService/WriteBlob", (), UnauthenticatedError),
        ("RunService/GetRun", called("box", "worker"), PermissionDeniedError),
        ("RunService/WatchRun", called("box", "worker"), PermissionDeniedError),
    ],
)
async def test_caller_is_refused_before_it_has_sent_anything(
    path: str, metadata: Any, kind: type[LiptError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as served:
        call: Any = served.channel.stream_stream(f"/lipt.v1.{path}")(metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert type(from_rpc_error(caught.value)) is kind
        assert served.events.count(EventKind.CALL_REFUSED, kind.reason) == 1
        assert served.naming.requests == []
        assert f"detail={kind.reason} method=/lipt.v1.{path} peer=ipv4:127.0.0.1:" in caplog.text


async def test_caller_that_is_let_in_and_sends_nothing_is_told_so() -> None:
    async with serving() as served:
        method: Any = served.channel.stream_unary("/lipt.v1.RunService/GetRun")
        error = await refusal(method(iter(()), metadata=called("ann")))
        assert isinstance(error, InvalidRequestError)
        assert "ended without a request" in str(error)


async def test_handlers_are_kept_and_methods_that_are_not_there_take_no_memory() -> None:
    async with serving() as served:
        for _ in range(2):
            await served.runs.GetRun(run_pb2.GetRunRequest(), metadata=called("ann"))
            with pytest.raises(grpc.aio.AioRpcError):
                await served.channel.unary_unary("/lipt.v1.RunService/Guess")(b"")  # type: ignore[misc]
        assert list(served.calls._handlers) == ["/lipt.v1.RunService/GetRun"]
