"""A coordinator's blobs on a real port, with faults that a test orders."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from lipt.common.backoff import RetryPolicy
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import LiptError, UnreachableError
from lipt.common.rpc.channel import open_channel
from lipt.coordinator.rpc.blobs import BlobService
from lipt.v1 import blob_pb2, blob_pb2_grpc
from tests.blob_files import uploads_into
from tests.serving import serving

MessageT = TypeVar("MessageT", blob_pb2.ReadBlobResponse, blob_pb2.WriteBlobRequest)

MAX_BLOB_BYTES = 8 * 1024 * 1024


class FaultyBlobs(BlobService):
    """Counts streams and their chunks' bytes; does what a test put into its lists, once each."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store, uploads_into(store))
        self.store = store
        self.address = ""
        # After how many chunks the next calls break off.
        self.cuts: list[int] = []
        # At which offsets of the blob the next chunks have a bit flipped.
        self.flips: list[int] = []
        self.num_calls = self.num_bytes = 0
        self.hang = False
        self.refusal: LiptError | None = None

    async def ReadBlob(
        self, request: blob_pb2.ReadBlobRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[blob_pb2.ReadBlobResponse]:
        self.num_calls += 1
        if self.hang:
            await asyncio.Event().wait()
        if self.refusal:
            raise self.refusal
        served: Any = super().ReadBlob(request, context)
        async with aclosing(served) as responses:
            async for response in self._faulty(responses):
                yield response

    async def WriteBlob(
        self,
        request_iterator: AsyncIterator[blob_pb2.WriteBlobRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> blob_pb2.WriteBlobResponse:
        self.num_calls += 1
        if self.hang:
            await asyncio.Event().wait()
        return await super().WriteBlob(self._faulty(request_iterator), context)

    async def _faulty(self, messages: AsyncIterator[MessageT]) -> AsyncIterator[MessageT]:
        left = self.cuts.pop(0) if self.cuts else None
        async for message in messages:
            if left == 0:
                raise UnreachableError("cut")
            left = None if left is None else left - 1
            chunk = message.chunk
            self.num_bytes += len(chunk.data)
            if chunk.offset_bytes in self.flips:
                self.flips.remove(chunk.offset_bytes)
                chunk.data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]
            yield message


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path, max_blob_bytes=10_000)


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[FaultyBlobs]:
    service = FaultyBlobs(BlobStore(tmp_path / "coordinator", max_blob_bytes=MAX_BLOB_BYTES))
    async with serving((blob_pb2_grpc.add_BlobServiceServicer_to_server, service)) as address:
        service.address = address
        yield service


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
