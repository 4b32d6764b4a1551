"""Calls on a real port, as the coordinator's meters have them afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from lipt.common.blobs.blob import BlobName, blob_to_proto, fill_chunk
from lipt.common.observability.metrics import Histogram
from lipt.coordinator.app import App
from lipt.coordinator.instruments import BLOB_BYTES, PEER_REFUSALS, RPC, RPC_IN_FLIGHT, RPC_LONG
from lipt.coordinator.server import serving
from lipt.v1 import blob_pb2, blob_pb2_grpc, info_pb2, info_pb2_grpc, run_pb2, run_pb2_grpc
from tests.coordinator.fakes import make_settings, opened
from tests.serving import own_user_channel


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[App, str]]:
    async with opened(make_settings(directory)) as app, serving(app) as address:
        yield app, address


def counts(app: App, histogram: Histogram) -> dict[tuple[str, ...], int]:
    found = app.meters.distributions(histogram)
    return {labels: sum(distribution.counts) for labels, distribution in found.items()}


async def until(holds: Callable[[], bool]) -> None:
    """A server notes the end of a call a moment after its client has the answer."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - meters tell nobody
            await asyncio.sleep(0)


async def test_calls_are_measured_by_method_and_code_and_refusals_by_peer(tmp_path: Path) -> None:
    async with served(tmp_path) as (app, address), own_user_channel(address) as channel:
        runs: Any = run_pb2_grpc.RunServiceStub(channel)
        info: Any = info_pb2_grpc.InfoServiceStub(channel)
        await info.GetInfo(info_pb2.GetInfoRequest())
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError):
                await runs.GetRun(run_pb2.GetRunRequest(run_id="nobody"))
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/lipt.v1.RunService/Guess")(b"")
        expected = {
            ("InfoService/GetInfo", "OK"): 1,
            ("RunService/GetRun", "NOT_FOUND"): 2,
            ("other", "UNIMPLEMENTED"): 1,
        }
        await until(lambda: counts(app, RPC) == expected)
        await until(lambda: app.meters.sums(RPC_IN_FLIGHT) == {(): 0.0})
        assert app.meters.sums(PEER_REFUSALS) == {("ipv4:127.0.0.1", "NOT_FOUND"): 2}
        assert counts(app, RPC_LONG) == {}


async def test_who_is_turned_away_at_the_entrance_counts_by_its_address(tmp_path: Path) -> None:
    async with served(tmp_path) as (app, address), grpc.aio.insecure_channel(address) as stranger:
        info: Any = info_pb2_grpc.InfoServiceStub(stranger)
        with pytest.raises(grpc.aio.AioRpcError):
            await info.GetInfo(info_pb2.GetInfoRequest())
        refused = ("ipv4:127.0.0.1", "UNAUTHENTICATED")
        await until(lambda: app.meters.sums(PEER_REFUSALS) == {refused: 1})


async def test_a_watcher_that_leaves_was_not_refused_and_is_no_answer_at_once(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (app, address), own_user_channel(address) as channel:
        runs: Any = run_pb2_grpc.RunServiceStub(channel)
        await runs.CreateRun(run_pb2.CreateRunRequest(name="mine"))
        watching = runs.WatchRun(run_pb2.WatchRunRequest(run_id="mine"))
        await watching.read()
        assert app.meters.sums(RPC_IN_FLIGHT) == {(): 1.0}
        watching.cancel()
        await until(lambda: counts(app, RPC_LONG) == {("RunService/WatchRun", "CANCELLED"): 1})
        assert app.meters.sums(PEER_REFUSALS) == {}
        await until(lambda: app.meters.sums(RPC_IN_FLIGHT) == {(): 0.0})


async def test_bytes_of_files_count_in_both_directions(tmp_path: Path) -> None:
    async with served(tmp_path) as (app, address), own_user_channel(address) as channel:
        blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)
        content = bytes(5000)
        first = blob_pb2.WriteBlobRequest(blob=blob_to_proto(BlobName.of(content)))
        fill_chunk(first.chunk, 0, content[:3000])
        second = blob_pb2.WriteBlobRequest()
        fill_chunk(second.chunk, 3000, content[3000:])
        written = await blobs.WriteBlob(iter((first, second)))
        request = blob_pb2.ReadBlobRequest(blob=written.blob, offset_bytes=1000)
        async for _ in blobs.ReadBlob(request):
            pass
        await until(lambda: len(counts(app, RPC_LONG)) == 2)
        assert app.meters.sums(BLOB_BYTES) == {("received",): 5000.0, ("sent",): 4000.0}
