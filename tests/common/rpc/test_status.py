from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from lipt.common.errors import (
    InvalidRequestError,
    LiptError,
    QueueFullError,
    UnknownRunError,
    UnreachableError,
    error_class,
    error_classes,
    revive,
)
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.status import from_rpc_error
from lipt.v1 import blob_pb2, blob_pb2_grpc, run_pb2, run_pb2_grpc
from tests.serving import serving

# What can be raised: a family has no reason of its own.
ERRORS = [cls for cls in error_classes() if error_class(cls.reason) is cls]


class Raising(run_pb2_grpc.RunServiceServicer, blob_pb2_grpc.BlobServiceServicer):
    """Raises what the test sets, from a plain call and from a stream."""

    error: Exception = LiptError("unset")

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
async def test_every_error_arrives_as_its_own_class(
    servicer: tuple[Raising, str], cls: type[LiptError], call: Any
) -> None:
    if cls.code is grpc.StatusCode.UNAVAILABLE:
        pytest.skip("raised by clients alone: a server that answers is reachable")
    servicer[0].error = revive(cls, "weights of 3 tensors; give 4")
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.to_thread(call, servicer[1])
    error = from_rpc_error(caught.value)
    assert type(error) is cls
    assert str(error) == "weights of 3 tensors; give 4"
    assert caught.value.code() is cls.code  # type: ignore[attr-defined]


async def test_error_arrives_with_the_time_after_which_to_ask_again(
    servicer: tuple[Raising, str],
) -> None:
    servicer[0].error = revive(QueueFullError, "it is full.", 2.5)
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.to_thread(get_run, servicer[1])
    assert from_rpc_error(caught.value).retry_after_seconds == 2.5
    status = rpc_status.from_call(caught.value)  # type: ignore[arg-type]
    assert status is not None
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    assert retry.retry_delay.ToMilliseconds() == 2500
    servicer[0].error = UnknownRunError("there is none.")
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.to_thread(get_run, servicer[1])
    assert from_rpc_error(caught.value).retry_after_seconds is None


async def test_unforeseen_error_gets_a_number_and_keeps_its_secret(
    servicer: tuple[Raising, str],
) -> None:
    servicer[0].error = RuntimeError("a path and a password")
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.to_thread(get_run, servicer[1])
    error = from_rpc_error(caught.value)
    assert type(error) is LiptError
    assert "incident" in str(error)
    assert "password" not in str(error)


async def test_call_that_is_not_served_is_no_error_of_this_service(
    servicer: tuple[Raising, str],
) -> None:
    with open_channel(servicer[1]) as channel:
        stub = run_pb2_grpc.RunServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.to_thread(stub.ListRuns, run_pb2.ListRunsRequest(), timeout=20)
    assert "UNIMPLEMENTED" in str(from_rpc_error(caught.value))


def test_absent_server_is_unreachable() -> None:
    with open_channel("127.0.0.1:1") as channel:
        stub = run_pb2_grpc.RunServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetRun(run_pb2.GetRunRequest(), timeout=5)
    assert isinstance(from_rpc_error(caught.value), UnreachableError)


async def test_request_that_is_no_such_message_is_an_invalid_request(
    servicer: tuple[Raising, str],
) -> None:
    async with grpc.aio.insecure_channel(servicer[1]) as channel:
        method = channel.unary_unary("/lipt.v1.RunService/GetRun")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"\xff", timeout=20)
    error = from_rpc_error(caught.value)
    assert isinstance(error, InvalidRequestError)
    assert "cannot be read" in str(error)
    assert "proto/lipt/v1" in str(error)


async def test_message_in_the_middle_of_a_stream_that_is_none_is_an_invalid_request() -> None:
    seen = list[Any]()

    class Reading(blob_pb2_grpc.BlobServiceServicer):
        async def WriteBlob(self, request_iterator: Any, context: Any) -> Any:
            seen.extend([request async for request in request_iterator])

    servicer = Reading()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented
    async with (
        serving((blob_pb2_grpc.add_BlobServiceServicer_to_server, servicer)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        method = channel.stream_unary("/lipt.v1.BlobService/WriteBlob")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(iter([b"", b"\xff"]), timeout=20)
    assert isinstance(from_rpc_error(caught.value), InvalidRequestError)
    assert not seen


async def test_long_sentence_arrives_with_its_beginning_and_its_remedy(
    servicer: tuple[Raising, str],
) -> None:
    servicer[0].error = UnknownRunError(
        f"there is no run {'é' * 50_000}. Start one: lipt run start"
    )
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.to_thread(get_run, servicer[1])
    error = from_rpc_error(caught.value)
    assert isinstance(error, UnknownRunError)
    assert str(error).startswith("there is no run éé")
    assert str(error).endswith("éé. Start one: lipt run start")
    assert len(str(error).encode()) < 2000
