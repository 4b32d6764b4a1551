"""Blob transfer: a client's resumable downloads and uploads, checked by CRC and digest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import grpc

from lipt.common.backoff import RetryPolicy, retry
from lipt.common.blobs.blob import BlobName, blob_to_proto, chunk_data, fill_chunk, wrong_offset
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import (
    BlobTooLargeError,
    CorruptBlobError,
    LiptError,
    TooManyCallsError,
    TransferError,
    UnreachableError,
    from_rpc_error,
)
from lipt.common.rpc.channel import IdleWatchdog
from lipt.common.rpc.messages import CHUNK_BYTES
from lipt.v1 import blob_pb2, blob_pb2_grpc

ResultT = TypeVar("ResultT")

_STATUS_SECONDS = 10.0
# Retryable errors; a full disk on either side is reported at once.
_MENDED = (UnreachableError, TooManyCallsError, TransferError)


@dataclass(frozen=True)
class Transfers:
    """Downloads and uploads over one connection.

    `on_bytes` gets the number of bytes moved; an error in it ends the transfer. A call without
    bytes for `idle_seconds` is cancelled and retried.
    """

    stub: blob_pb2_grpc.BlobServiceStub
    on_bytes: Callable[[int], object] | None = None
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    idle_seconds: float = 30.0

    def download(self, name: BlobName, store: BlobStore) -> Path:

        def attempt() -> Path:
            if not store.has(name):
                with store.open_upload(name, store.committed_offset(name)) as upload:
                    self._receive(name, lambda: upload.offset_bytes, upload.write)
                    upload.finish()
            return store.path(name)

        return self._retried(attempt, lambda: store.committed_offset(name))

    def download_bytes(self, name: BlobName, *, max_bytes: int) -> bytes:
        if name.size_bytes > max_bytes:
            raise BlobTooLargeError(f"blob {name} is over {max_bytes} bytes. Raise the limit.")
        content = bytearray()

        def attempt() -> bytes:
            self._receive(name, lambda: len(content), content.extend)
            if len(content) != name.size_bytes:
                raise wrong_offset(name, f"it ends at byte {len(content)}")
            data = bytes(content)
            if BlobName.of(data) != name:
                content.clear()
                raise CorruptBlobError(f"blob {name} arrived with another digest. Ask again.")
            return data

        return self._retried(attempt, lambda: len(content))

    def upload(self, data: bytes | Path) -> BlobName:
        name = BlobName.of(data) if isinstance(data, bytes) else BlobName.of_file(data)
        committed = 0

        def attempt() -> BlobName:
            nonlocal committed
            request = blob_pb2.GetUploadStatusRequest(blob=blob_to_proto(name))
            with _lipt_errors():
                status = self.stub.GetUploadStatus(request, timeout=_STATUS_SECONDS)
            committed = status.committed_offset_bytes
            if not status.complete:
                self._send(name, data, committed)
            return name

        return self._retried(attempt, lambda: committed)

    def _retried(self, attempt: Callable[[], ResultT], progress: Callable[[], int]) -> ResultT:
        return retry(attempt, on=_MENDED, policy=self.policy, progress=progress)

    def _receive(
        self, name: BlobName, offset: Callable[[], int], write: Callable[[bytes], object]
    ) -> None:
        if offset() == name.size_bytes:
            return
        request = blob_pb2.ReadBlobRequest(blob=blob_to_proto(name), offset_bytes=offset())
        call = self.stub.ReadBlob(request)
        watchdog = IdleWatchdog(self.idle_seconds)
        with _lipt_errors(watchdog), watchdog.over(call):
            for response in watchdog.messages(call):
                data = chunk_data(response.chunk, blob=name, offset_bytes=offset())
                write(data)
                if self.on_bytes:
                    self.on_bytes(len(data))

    def _send(self, name: BlobName, data: bytes | Path, offset_bytes: int) -> None:
        watchdog = IdleWatchdog(self.idle_seconds)
        errors: list[Exception] = []

        def requests() -> Iterator[blob_pb2.WriteBlobRequest]:
            # gRPC logs errors of this iterator, and hides them from the caller.
            try:
                for offset in range(offset_bytes, end_bytes, CHUNK_BYTES):
                    piece = content.read(CHUNK_BYTES)
                    watchdog.wait_begins()
                    ref = blob_to_proto(name) if offset == offset_bytes else None
                    request = blob_pb2.WriteBlobRequest(blob=ref)
                    fill_chunk(request.chunk, offset, piece)
                    yield request
                    if self.on_bytes:
                        self.on_bytes(len(piece))
            except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
                errors.append(error)

        # At least one message, to name an empty blob.
        end_bytes = max(name.size_bytes, offset_bytes + 1)
        with BytesIO(data) if isinstance(data, bytes) else data.open("rb") as content:
            content.seek(offset_bytes)
            call = self.stub.WriteBlob.future(requests())
            try:
                with _lipt_errors(watchdog), watchdog.over(call):
                    call.result()
            except LiptError:
                if errors:
                    raise errors[0] from None
                raise


@contextmanager
def _lipt_errors(watchdog: IdleWatchdog | None = None) -> Iterator[None]:
    try:
        yield
    except (grpc.RpcError, grpc.FutureCancelledError) as error:
        if watchdog and watchdog.expired:
            raise UnreachableError(
                "the coordinator stopped moving bytes. Check the network and its load."
            ) from error
        if isinstance(error, grpc.RpcError):
            raise from_rpc_error(error) from error
        raise UnreachableError("the coordinator ended the call. Call again.") from error
