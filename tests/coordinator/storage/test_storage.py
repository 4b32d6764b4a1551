"""Quotas as peers meet them: real gRPC, a connection per peer, a compute process that is played."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from lipt.common.blobs.blob import BlobName, blob_to_proto, fill_chunk
from lipt.common.errors import (
    StorageFullError,
    WrongOffsetError,
    from_rpc_error,
)
from lipt.common.states import RunState
from lipt.common.weights.files import pack
from lipt.coordinator.app import App
from lipt.coordinator.compute.jobs.selecting import Diagnosed, DiagnoseData, SelectSubset
from lipt.coordinator.server import serving
from lipt.coordinator.subsets.answers import DiagnosisQuery
from lipt.core.stages.question import SubsetQuery
from lipt.v1 import blob_pb2, blob_pb2_grpc, config_pb2
from tests.coordinator.fakes import THETA, FakeWorker, make_settings, opened, pretraining
from tests.serving import own_user_channel

# Another connection, however often the address was dialled.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
QUOTA = {"max_bytes": 1000, "max_bytes_per_peer": 700}


class Peer:
    """One connection."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)

    async def send(self, content: bytes, *, up_to: int | None = None) -> BlobName:
        """Send a content, or no more than its beginning."""
        name = BlobName.of(content)
        request = blob_pb2.WriteBlobRequest(blob=blob_to_proto(name))
        fill_chunk(request.chunk, 0, content[:up_to])
        try:
            await self.blobs.WriteBlob(iter([request]), timeout=60)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return name

    async def cut(self, content: bytes) -> None:
        """Send one byte, and leave."""
        with pytest.raises(WrongOffsetError):
            await self.send(content, up_to=1)


class Served:
    """A coordinator, and as many peers as a test wants."""

    def __init__(self, app: App, address: str, stack: AsyncExitStack) -> None:
        self.app = app
        self._address = address
        self._stack = stack

    async def peer(self) -> Peer:
        channel = own_user_channel(self._address, _OPTIONS)
        return Peer(await self._stack.enter_async_context(channel))

    def figures(self, name: str) -> dict[str, float]:
        readings = self.app.storage.readings()
        (found,) = [figures for gauge, figures in readings.items() if gauge.name == name]
        return {"".join(labels): figure for labels, figure in found.items()}


@asynccontextmanager
async def served(directory: Path, **storage: object) -> AsyncIterator[Served]:
    settings = make_settings(directory, storage={**QUOTA, **storage})
    async with (
        opened(settings) as app,
        serving(app) as address,
        AsyncExitStack() as stack,
    ):
        yield Served(app, address, stack)


async def in_training(app: App) -> None:
    """A run, until its learners can be had."""
    run = await app.requests.create("q", "mine", config_pb2.RunConfig())
    while app.store.find(run.run_id).state is not RunState.TRAINING:
        revision = app.store.revision(run.run_id)
        await app.store.wait_for_change(run.run_id, revision, timeout_seconds=60.0)


async def test_restart_counts_what_is_there(tmp_path: Path) -> None:
    async with served(tmp_path) as coordinator:
        await in_training(coordinator.app)
        peer = await coordinator.peer()
        await peer.send(b"a" * 600)
        greedy = await coordinator.peer()
        await greedy.cut(b"b" * 100)
        with pytest.raises(StorageFullError, match=r"this peer would take 701.*at most 700"):
            await greedy.send(b"c" * 601)
        # What is refused has left no file, and no other peer notices.
        assert len(list((tmp_path / "state" / "uploads").iterdir())) == 1
        assert coordinator.figures("lipt_storage_bytes")["reserved"] == 100
    async with served(tmp_path) as coordinator:
        # Of the beginning one byte: what else is to come is declared when it goes on. What the
        # coordinator made for its run is nobody's upload.
        assert coordinator.figures("lipt_storage_bytes")["uploaded"] == 600
        assert coordinator.figures("lipt_unfinished_uploads") == {"": 1}
        peer = await coordinator.peer()
        with pytest.raises(StorageFullError, match="all peers together would take 1001 bytes"):
            await peer.send(b"c" * 400)
        assert await peer.send(b"c" * 399)


async def test_what_a_run_is_made_of_counts_no_more(tmp_path: Path) -> None:
    async with served(tmp_path) as coordinator:
        peer = await coordinator.peer()
        name = await peer.send(b"g" * 700)
        await in_training(coordinator.app)
        (run,) = coordinator.app.store.runs()
        await coordinator.app.store.update(
            run.run_id, lambda run: run.with_learner(run.learners[0].changed(result=name))
        )
        assert coordinator.figures("lipt_storage_bytes")["uploaded"] == 0
        assert await peer.send(b"h" * 700)


async def test_old_blob_that_is_asked_about_is_there_afterwards(tmp_path: Path) -> None:
    async with served(tmp_path) as coordinator:
        peer = await coordinator.peer()
        names = [await peer.send(content) for content in (b"asked", b"sent", b"read", b"left")]
        for name in names:
            os.utime(coordinator.app.blobs.path(name), (1000.0, 1000.0))
        asked, _, read, left = map(blob_to_proto, names)
        await peer.blobs.GetUploadStatus(blob_pb2.GetUploadStatusRequest(blob=asked))
        await peer.send(b"sent")
        async for _ in peer.blobs.ReadBlob(blob_pb2.ReadBlobRequest(blob=read)):
            pass
        await coordinator.app.storage.collect()
        assert [coordinator.app.blobs.has(name) for name in names] == [True, True, True, False]
        assert coordinator.figures("lipt_storage_bytes")["uploaded"] == 13
        answer = await peer.blobs.GetUploadStatus(blob_pb2.GetUploadStatusRequest(blob=left))
        assert not answer.complete


async def test_what_a_request_is_about_is_not_removed_before_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path)
    compute = pretraining(settings.state_dir)
    removed: list[bool] = []
    async with opened(settings, compute) as app:
        name = app.blobs.put_bytes(pack(THETA))

        def expire(_: object = None) -> None:
            removed.append(app.blobs.expiry.remove_blob(name.sha256, before=math.inf))

        select = compute.answers[SelectSubset]
        assert callable(select)
        blob = app.blobs.put_bytes(b"findings")
        compute.answers[SelectSubset] = lambda job: (expire(), select(job))[1]
        compute.answers[DiagnoseData] = lambda job: (expire(), Diagnosed(blob, "cpu"))[1]
        monkeypatch.setattr(app.requests.admission, "_check_weights", lambda *_: (expire(), "")[1])
        given = config_pb2.RunConfig(initialization={"weights_sha256": name.sha256})
        run = await app.requests.create("q", "mine", given)
        worker = FakeWorker(app)
        for _ in range(2):
            await worker.hand_in(await worker.take())
        while app.store.find(run.run_id).state is not RunState.READY:
            revision = app.store.revision(run.run_id)
            await app.store.wait_for_change(run.run_id, revision, timeout_seconds=60.0)
        asked = SubsetQuery("mine", "uniform", 0.1, None, None, {}, weights=name)
        await app.answers.subset(asked, lambda _: None, "me")
        await app.answers.diagnosis(DiagnosisQuery(features=name), lambda _: None, "me")
        assert removed == [False] * 3
        expire()
        assert removed[-1]
