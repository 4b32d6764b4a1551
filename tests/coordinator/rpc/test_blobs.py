import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from lipt.common.blobs.blob import (
    MAX_CHUNK_BYTES,
    BlobName,
    blob_from_proto,
    blob_to_proto,
    fill_chunk,
)
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import (
    BlobTooLargeError,
    CorruptBlobError,
    ForeignBlobError,
    InvalidRequestError,
    LiptError,
    UnknownBlobError,
    UnreachableError,
    WrongOffsetError,
    from_rpc_error,
)
from lipt.common.rpc.messages import CHUNK_BYTES
from lipt.v1 import blob_pb2, blob_pb2_grpc
from tests.blob_files import blob_service, files_of
from tests.serving import serving

ResultT = TypeVar("ResultT")

DATA = random.Random(0).randbytes(3 * CHUNK_BYTES + 5)
NAME = BlobName.of(DATA)
MAX_BLOB_BYTES = 16 * 1024 * 1024


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path, max_blob_bytes=MAX_BLOB_BYTES)


@asynccontextmanager
async def served(store: BlobStore, **options: Any) -> AsyncIterator[Any]:
    service = blob_service(store, **options)
    async with (
        serving((blob_pb2_grpc.add_BlobServiceServicer_to_server, service)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield blob_pb2_grpc.BlobServiceStub(channel)


@pytest.fixture
async def stub(store: BlobStore) -> AsyncIterator[Any]:
    async with served(store) as stub:
        yield stub


def message(name: BlobName | None, offset_bytes: int, data: bytes) -> blob_pb2.WriteBlobRequest:
    request = blob_pb2.WriteBlobRequest(blob=blob_to_proto(name) if name else None)
    fill_chunk(request.chunk, offset_bytes, data)
    return request


def messages(data: bytes, name: BlobName) -> list[blob_pb2.WriteBlobRequest]:
    return [
        message(None if offset else name, offset, data[offset : offset + CHUNK_BYTES])
        for offset in range(0, len(data), CHUNK_BYTES)
    ]


async def known(call: Awaitable[ResultT]) -> ResultT:
    """The answer, or the error as clients raise it."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


async def write(stub: Any, requests: Iterable[blob_pb2.WriteBlobRequest]) -> BlobName:
    response: blob_pb2.WriteBlobResponse = await known(stub.WriteBlob(iter(requests)))
    return blob_from_proto(response.blob)


async def rest(call: Any) -> bytes:
    return b"".join([response.chunk.data async for response in call])


async def read(stub: Any, name: BlobName, offset_bytes: int = 0) -> bytes:
    request = blob_pb2.ReadBlobRequest(blob=blob_to_proto(name), offset_bytes=offset_bytes)
    return await known(rest(stub.ReadBlob(request)))


async def status(stub: Any, name: BlobName) -> tuple[int, bool]:
    request = blob_pb2.GetUploadStatusRequest(blob=blob_to_proto(name))
    response: Any = await known(stub.GetUploadStatus(request, timeout=10))
    return response.committed_offset_bytes, response.complete


async def test_stores_and_streams_a_blob(stub: Any, store: BlobStore) -> None:
    assert await status(stub, NAME) == (0, False)
    assert await write(stub, messages(DATA, NAME)) == NAME
    assert await status(stub, NAME) == (len(DATA), True)
    assert store.read_bytes(NAME) == DATA
    assert await read(stub, NAME) == DATA
    assert await read(stub, NAME, 1_000) == DATA[1_000:]
    assert await read(stub, NAME, len(DATA)) == b""


class NobodysBlobs:
    """Rights of a worker that may read and send no blob."""

    def require_readable(self, *_: object) -> None:
        raise ForeignBlobError("not to be read.")

    def allowance(self, *_: object) -> None:
        raise ForeignBlobError("not to be sent.")


async def test_a_worker_cannot_read_or_write_other_blobs(store: BlobStore) -> None:
    name = store.put_bytes(b"another's")
    async with served(store, of_workers=NobodysBlobs()) as stub:
        with pytest.raises(ForeignBlobError, match="not to be read"):
            await read(stub, name)
        with pytest.raises(ForeignBlobError, match="not to be sent"):
            await write(stub, messages(DATA, NAME))
        with pytest.raises(ForeignBlobError, match="not to be sent"):
            await status(stub, NAME)
    assert files_of(store) == [f"blobs/{name.sha256[:2]}/{name.sha256}"]


BAD = blob_pb2.Chunk(data=b"x", crc32=1)
OTHER = BlobName(NAME.sha256, MAX_BLOB_BYTES + 1)


@pytest.mark.parametrize(
    ("requests", "error", "words"),
    [
        ([], InvalidRequestError, "names no blob. Set `blob` in it"),
        (
            [blob_pb2.WriteBlobRequest(blob=blob_pb2.BlobRef(sha256="../../x", size_bytes=1))],
            InvalidRequestError,
            "Give the 64 lower-case hexadecimal digits",
        ),
        ([message(OTHER, 0, b"x")], BlobTooLargeError, f"{MAX_BLOB_BYTES + 1} bytes; at most"),
        ([message(NAME, 7, b"x")], WrongOffsetError, "up to byte 0, not 7. Ask for its status"),
        (
            [blob_pb2.WriteBlobRequest(blob=blob_to_proto(NAME), chunk=BAD)],
            CorruptBlobError,
            "differs from its CRC-32",
        ),
        (
            [message(NAME, 0, bytes(MAX_CHUNK_BYTES + 1))],
            BlobTooLargeError,
            f"Send chunks of {CHUNK_BYTES} bytes",
        ),
        (messages(DATA[::-1], NAME), CorruptBlobError, "Send it again from the start"),
    ],
)
async def test_refuses_a_bad_upload(
    requests: list[blob_pb2.WriteBlobRequest],
    error: type[LiptError],
    words: str,
    stub: Any,
    store: BlobStore,
) -> None:
    with pytest.raises(error, match=words):
        await write(stub, requests)
    assert not store.has(NAME)


async def test_reads_of_missing_blobs_are_refused(stub: Any, store: BlobStore) -> None:
    with pytest.raises(UnknownBlobError, match="no blob"):
        await read(stub, NAME)
    store.put_bytes(DATA)
    for offset in (-1, len(DATA) + 1):
        with pytest.raises(WrongOffsetError, match=f"has no byte {offset}"):
            await read(stub, NAME, offset)


async def test_a_truncated_blob_file_is_detected(stub: Any, store: BlobStore) -> None:
    # So large that most of it waits for the reader.
    name = store.put_bytes(bytes(MAX_BLOB_BYTES))
    call = aiter(stub.ReadBlob(blob_pb2.ReadBlobRequest(blob=blob_to_proto(name))))
    await anext(call)
    with store.path(name).open("r+b") as file:
        file.truncate(0)
    with pytest.raises(CorruptBlobError):
        await known(rest(call))


async def test_a_vanished_client_leaves_a_resumable_upload(stub: Any, store: BlobStore) -> None:
    requests = messages(DATA, NAME)
    call = stub.WriteBlob()
    await call.write(requests[0])
    await call.write(requests[1])
    await begun(store, 2 * CHUNK_BYTES)
    call.cancel()
    # Once the server has noticed.
    async with asyncio.timeout(20):
        while await status(stub, NAME) != (2 * CHUNK_BYTES, False):
            pass
    requests[2].blob.CopyFrom(blob_to_proto(NAME))
    await write(stub, requests[2:])
    assert store.read_bytes(NAME) == DATA


async def test_a_slow_sender_delays_no_other_sender_of_the_same_blob(
    stub: Any, store: BlobStore
) -> None:
    requests = messages(DATA, NAME)
    slow = stub.WriteBlob()
    # Which is not what it announced, either.
    await slow.write(message(NAME, 0, bytes(CHUNK_BYTES)))
    await begun(store)
    assert await write(stub, requests) == NAME
    assert store.read_bytes(NAME) == DATA
    await slow.write(message(None, CHUNK_BYTES, bytes(len(DATA) - CHUNK_BYTES)[:CHUNK_BYTES]))
    await slow.done_writing()
    with pytest.raises(WrongOffsetError):
        await known(slow)
    assert await read(stub, NAME) == DATA
    assert files_of(store) == [f"blobs/{NAME.sha256[:2]}/{NAME.sha256}"]


async def begun(store: BlobStore, num_bytes: int = 1) -> None:
    """Return once a part has so many bytes."""
    async with asyncio.timeout(20):
        while not any(it.size_bytes >= num_bytes for it in store.expiry.parts()):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_silent_upload_times_out_and_can_be_resumed(store: BlobStore) -> None:
    async with served(store, idle_seconds=0.05) as stub:
        call = stub.WriteBlob(timeout=10)
        await call.write(messages(DATA, NAME)[0])
        with pytest.raises(UnreachableError, match=r"sent nothing for 0\.05 s"):
            await known(call)
        assert await status(stub, NAME) == (CHUNK_BYTES, False)
