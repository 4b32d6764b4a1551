"""Blob servicer: streams from and to the blob store.

Disk access and hashing run in threads, so the event loop keeps answering heartbeats. A stream holds
at most two chunks, so a stalled reader costs little memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import BufferedReader

from lipt.common.blobs.blob import (
    BlobName,
    blob_from_proto,
    blob_to_proto,
    chunk_data,
    fill_chunk,
    wrong_offset,
)
from lipt.common.blobs.store import BlobStore, Upload
from lipt.common.errors import CorruptBlobError, InvalidRequestError, UnreachableError
from lipt.common.observability.metrics import Meters
from lipt.common.rpc.messages import CHUNK_BYTES
from lipt.coordinator.access.caller import current_caller
from lipt.coordinator.instruments import BLOB_BYTES
from lipt.coordinator.rpc.handlers import Context
from lipt.coordinator.rpc.limits import peer_of, shown_by
from lipt.coordinator.uploads import Allowance, Uploads, WorkerBlobs
from lipt.v1 import blob_pb2, blob_pb2_grpc

# A vanished sender counts towards its peer's unfinished uploads for this long.
IDLE_SECONDS = 20.0


@dataclass(eq=False)
class BlobService(blob_pb2_grpc.BlobServiceServicer):
    """Serves one store; an upload that is silent for `idle_seconds` is ended."""

    store: BlobStore
    uploads: Uploads
    of_workers: WorkerBlobs | None = None
    idle_seconds: float = IDLE_SECONDS
    meters: Meters = field(default_factory=Meters)

    async def ReadBlob(
        self, request: blob_pb2.ReadBlobRequest, context: Context
    ) -> AsyncIterator[blob_pb2.ReadBlobResponse]:
        name = blob_from_proto(request.blob)
        if self.of_workers:
            self.of_workers.require_readable(name, shown_by(context))
        offset = request.offset_bytes
        # It cannot be removed while held or open. An interrupted reader can resume, because it was
        # used just now.
        with self.store.expiry.holding(name.sha256):
            await asyncio.to_thread(self.store.use, name)
            path = await asyncio.to_thread(self.store.path, name)
            if not 0 <= offset <= name.size_bytes:
                raise wrong_offset(name, f"it has no byte {offset}")
            file = await asyncio.to_thread(path.open, "rb")
        ahead = _read_soon(name, file, offset)
        try:
            while offset < name.size_bytes:
                response = await ahead
                offset += len(response.chunk.data)
                ahead = _read_soon(name, file, offset)
                yield response
                self.meters.add(BLOB_BYTES, "sent", by=len(response.chunk.data))
        finally:
            ahead.cancel()
            # In a thread: closing waits for the running read.
            asyncio.get_running_loop().run_in_executor(None, file.close)

    async def WriteBlob(
        self, request_iterator: AsyncIterator[blob_pb2.WriteBlobRequest], context: Context
    ) -> blob_pb2.WriteBlobResponse:
        """Store a blob; it is durable when this returns."""
        first = await self._next(request_iterator)
        if first is None or not first.HasField("blob"):
            raise InvalidRequestError(
                "the first message of an upload names no blob. Set `blob` in it, and a chunk."
            )
        name = blob_from_proto(first.blob)
        allowance = self._allowance(name, context)
        if not await asyncio.to_thread(self.store.use, name):
            offset, sender, peer = (
                first.chunk.offset_bytes,
                current_caller().label,
                peer_of(context),
            )
            async with self.uploads.receiving(name, offset, sender, peer, allowance) as upload:
                await self._append_all(upload, first, request_iterator)
                await asyncio.to_thread(upload.finish)
        return blob_pb2.WriteBlobResponse(blob=blob_to_proto(name))

    async def GetUploadStatus(
        self, request: blob_pb2.GetUploadStatusRequest, context: Context
    ) -> blob_pb2.GetUploadStatusResponse:
        name = blob_from_proto(request.blob)
        self._allowance(name, context)
        offset = await self.uploads.committed_offset(name, current_caller().label)
        complete = await asyncio.to_thread(self.store.use, name)
        return blob_pb2.GetUploadStatusResponse(committed_offset_bytes=offset, complete=complete)

    def _allowance(self, name: BlobName, context: Context) -> Allowance | None:
        workers = self.of_workers
        return None if workers is None else workers.allowance(name, shown_by(context))

    async def _append_all(
        self,
        upload: Upload,
        request: blob_pb2.WriteBlobRequest | None,
        rest: AsyncIterator[blob_pb2.WriteBlobRequest],
    ) -> None:
        while request is not None:
            self.meters.add(BLOB_BYTES, "received", by=len(request.chunk.data))
            writing = asyncio.ensure_future(asyncio.to_thread(_append, upload, request.chunk))
            try:
                request = await self._next(rest)
            finally:
                await writing

    async def _next(
        self, requests: AsyncIterator[blob_pb2.WriteBlobRequest]
    ) -> blob_pb2.WriteBlobRequest | None:
        try:
            async with asyncio.timeout(self.idle_seconds):
                return await anext(requests, None)
        except TimeoutError:
            raise UnreachableError(
                f"the upload sent nothing for {self.idle_seconds:g} s. Ask for the status and "
                "resume there."
            ) from None


def _read_soon(
    name: BlobName, file: BufferedReader, offset_bytes: int
) -> asyncio.Future[blob_pb2.ReadBlobResponse]:
    return asyncio.ensure_future(asyncio.to_thread(_read, name, file, offset_bytes))


def _read(name: BlobName, file: BufferedReader, offset_bytes: int) -> blob_pb2.ReadBlobResponse:
    file.seek(offset_bytes)
    data = file.read(CHUNK_BYTES)
    if not data and offset_bytes < name.size_bytes:
        raise CorruptBlobError(f"the file of blob {name} ends at byte {offset_bytes}.")
    response = blob_pb2.ReadBlobResponse()
    fill_chunk(response.chunk, offset_bytes, data)
    return response


def _append(upload: Upload, chunk: blob_pb2.Chunk) -> None:
    upload.write(chunk_data(chunk, blob=upload.name, offset_bytes=upload.offset_bytes))
