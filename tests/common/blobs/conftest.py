"""A coordinator's blobs on a real port, with faults that a test orders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from lipt.common.blobs.retry import RetryPolicy
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import UnreachableError
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.status import ErrorInterceptor
from lipt.coordinator.rpc.blobs import BlobService
from lipt.v1 import blob_pb2, blob_pb2_grpc

MAX_BLOB_BYTES = 8 * 1024 * 1024


class FaultyBlobs(BlobService):
    """Counts what it is asked for; does what a test put into its lists, once each.

    Attributes:
        cuts: after how many chunks the next calls break off.
        flips: at which offsets of the blob the next chunks read there have a bit flipped.
        num_calls: how many streams were opened.
        num_bytes: how many bytes of chunks went through.
        hang: whether reads send nothing.
    """

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store)
        self.store = store
        self.address = ""
        self.cuts: list[int] = []
        self.flips: list[int] = []
        self.num_calls = 0
        self.num_bytes = 0
        self.hang = False

    async def ReadBlob(
        self, request: blob_pb2.ReadBlobRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[blob_pb2.ReadBlobResponse]:
        self.num_calls += 1
        if self.hang:
            await asyncio.Event().wait()
        left = self.cuts.pop(0) if self.cuts else None
        async for response in super().ReadBlob(request, context):
            if left == 0:
                raise UnreachableError("cut")
            left = None if left is None else left - 1
            self.num_bytes += len(response.chunk.data)
            if response.chunk.offset_bytes in self.flips:
                self.flips.remove(response.chunk.offset_bytes)
                response.chunk.data = bytes([response.chunk.data[0] ^ 1]) + response.chunk.data[1:]
            yield response

    async def WriteBlob(
        self,
        request_iterator: AsyncIterator[blob_pb2.WriteBlobRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> blob_pb2.WriteBlobResponse:
        self.num_calls += 1
        return await super().WriteBlob(self._faulty(request_iterator), context)

    async def _faulty(
        self, requests: AsyncIterator[blob_pb2.WriteBlobRequest]
    ) -> AsyncIterator[blob_pb2.WriteBlobRequest]:
        left = self.cuts.pop(0) if self.cuts else None
        async for request in requests:
            if left == 0:
                raise UnreachableError("cut")
            left = None if left is None else left - 1
            self.num_bytes += len(request.chunk.data)
            if request.chunk.offset_bytes in self.flips:
                self.flips.remove(request.chunk.offset_bytes)
                request.chunk.data = bytes([request.chunk.data[0] ^ 1]) + request.chunk.data[1:]
            yield request


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[FaultyBlobs]:
    service = FaultyBlobs(BlobStore(tmp_path / "coordinator", max_blob_bytes=MAX_BLOB_BYTES))
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    blob_pb2_grpc.add_BlobServiceServicer_to_server(service, server)
    service.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield service
    await server.stop(None)


@pytest.fixture
def stub(blobs: FaultyBlobs) -> Iterator[blob_pb2_grpc.BlobServiceStub]:
    with open_channel(blobs.address) as channel:
        yield blob_pb2_grpc.BlobServiceStub(channel)


@pytest.fixture
def cache(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "cache", max_blob_bytes=MAX_BLOB_BYTES)


@pytest.fixture
def policy() -> RetryPolicy:
    return RetryPolicy(max_failures=4, first_seconds=0.01, max_seconds=0.05)
