import random
import subprocess
import sys
from asyncio import to_thread
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lipt.common.backoff import RetryPolicy
from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import (
    BlobTooLargeError,
    CorruptBlobError,
    LiptError,
    StateError,
    UnknownBlobError,
    UnreachableError,
    UploadInProgressError,
    WrongOffsetError,
)
from lipt.common.rpc.messages import CHUNK_BYTES
from lipt.v1.blob_pb2_grpc import BlobServiceStub
from tests.blob_files import file_size_limit

DATA = random.Random(0).randbytes(10 * CHUNK_BYTES + 5)
NAME = BlobName.of(DATA)
LIMIT = 8 * 1024 * 1024


@pytest.mark.parametrize("num_bytes", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
async def test_a_transferred_blob_is_unchanged(
    num_bytes: int, stub: BlobServiceStub, blobs: Any, cache: BlobStore, tmp_path: Path
) -> None:
    data = DATA[:num_bytes]
    source = tmp_path / "source"
    source.write_bytes(data[::-1])
    first = await to_thread(Transfers(stub).upload, data)
    second = await to_thread(Transfers(stub).upload, source)
    assert (first, second) == (BlobName.of(data), BlobName.of(data[::-1]))
    assert blobs.store.read_bytes(first) == data
    path = await to_thread(Transfers(stub).download, second, cache)
    assert path.read_bytes() == data[::-1]
    assert await to_thread(Transfers(stub).download_bytes, first, max_bytes=LIMIT) == data


async def test_an_interrupted_download_requests_only_the_rest(
    stub: BlobServiceStub, blobs: Any, cache: BlobStore, policy: RetryPolicy
) -> None:
    blobs.store.put_bytes(DATA)
    for into in ("store", "memory"):
        # The sixth call finds one chunk or less left; none asks twice for one.
        blobs.cuts, blobs.num_calls, blobs.num_bytes = [3, 0, 1, 4, 2], 0, 0
        counted: list[int] = []
        transfers = Transfers(stub, on_bytes=counted.append, policy=policy)
        if into == "store":
            await to_thread(transfers.download, NAME, cache)
        else:
            assert await to_thread(transfers.download_bytes, NAME, max_bytes=LIMIT) == DATA
        assert blobs.num_calls == 6
        assert blobs.num_bytes == sum(counted) == len(DATA)
    assert cache.read_bytes(NAME) == DATA


async def test_a_download_resumes(stub: BlobServiceStub, blobs: Any, cache: BlobStore) -> None:
    blobs.store.put_bytes(DATA)
    with cache.open_upload(NAME, 0) as part:
        part.write(DATA[:1_000_000])
    await to_thread(Transfers(stub).download, NAME, cache)
    assert blobs.num_bytes == len(DATA) - 1_000_000
    assert cache.read_bytes(NAME) == DATA
    await to_thread(Transfers(stub).download, NAME, cache)
    await to_thread(Transfers(stub).upload, DATA)
    assert blobs.num_calls == 1


async def test_a_cut_upload_resumes(stub: BlobServiceStub, blobs: Any, policy: RetryPolicy) -> None:
    blobs.cuts = [3, 2]
    await to_thread(Transfers(stub, policy=policy).upload, DATA)
    assert blobs.store.read_bytes(NAME) == DATA
    assert (blobs.num_calls, blobs.num_bytes) == (3, len(DATA))


async def test_a_download_damaged_every_time_fails_and_is_deleted(
    stub: BlobServiceStub, blobs: Any, cache: BlobStore, policy: RetryPolicy
) -> None:
    blobs.store.put_bytes(DATA)
    blobs.flips = [0] * 100
    with pytest.raises(CorruptBlobError, match="differs from its CRC-32"):
        await to_thread(Transfers(stub, policy=policy).download, NAME, cache)
    assert blobs.num_calls == policy.max_failures
    # The chunks' checksums agree with the damaged file; only the digest can tell.
    blobs.flips = []
    blobs.store.path(NAME).write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    transfers = Transfers(stub, policy=policy)
    with pytest.raises(CorruptBlobError, match="bytes changed on the way"):
        await to_thread(transfers.download, NAME, cache)
    with pytest.raises(CorruptBlobError, match="arrived with another digest"):
        await to_thread(transfers.download_bytes, NAME, max_bytes=LIMIT)
    assert not cache.has(NAME)
    assert cache.committed_offset(NAME) == 0


async def test_a_blob_above_the_limit_is_refused_by_its_declared_size(
    stub: BlobServiceStub, blobs: Any, tmp_path: Path
) -> None:
    blobs.store.put_bytes(DATA)
    small = BlobStore(tmp_path / "small", max_blob_bytes=100)
    with pytest.raises(BlobTooLargeError, match="at most 100 are stored"):
        await to_thread(Transfers(stub).download, NAME, small)
    with pytest.raises(BlobTooLargeError, match="is over 100 bytes"):
        await to_thread(Transfers(stub).download_bytes, NAME, max_bytes=100)
    with pytest.raises(BlobTooLargeError, match=f"at most {LIMIT} are stored"):
        await to_thread(Transfers(stub).upload, bytes(LIMIT + 1))
    assert blobs.num_calls == 0


async def test_a_silent_transfer_times_out(
    stub: BlobServiceStub, blobs: Any, cache: BlobStore
) -> None:
    blobs.store.put_bytes(DATA)
    blobs.hang = True
    policy = RetryPolicy(max_failures=2, first_seconds=0.01)
    transfers = Transfers(stub, policy=policy, idle_seconds=0.05)
    with pytest.raises(UnreachableError, match="stopped moving bytes"):
        await to_thread(transfers.download, NAME, cache)
    with pytest.raises(UnreachableError, match="stopped moving bytes"):
        await to_thread(transfers.upload, DATA[::-1])
    assert blobs.num_calls == 4


@pytest.mark.parametrize(
    ("error", "expected_calls"),
    [
        (UnreachableError, 3),
        (CorruptBlobError, 3),
        (UploadInProgressError, 3),
        (WrongOffsetError, 3),
        (UnknownBlobError, 1),
        (BlobTooLargeError, 1),
        # It may pass, but not within a transfer's pauses.
        (StateError, 1),
    ],
)
async def test_interruptions_and_damage_are_retried_but_refusals_are_raised(
    stub: BlobServiceStub, blobs: Any, cache: BlobStore, error: type[LiptError], expected_calls: int
) -> None:
    blobs.refusal = error("the coordinator says no.")
    policy = RetryPolicy(max_failures=3, sleep=lambda _: None)
    with pytest.raises(error, match="says no"):
        await to_thread(Transfers(stub, policy=policy).download, NAME, cache)
    assert blobs.num_calls == expected_calls


async def test_a_caller_can_stop_a_transfer(
    stub: BlobServiceStub, blobs: Any, cache: BlobStore
) -> None:
    # As a worker does that is told to stop.
    stopping = Transfers(stub, on_bytes=Mock(side_effect=[None, InterruptedError] * 2))
    with pytest.raises(InterruptedError):
        await to_thread(stopping.upload, DATA)
    assert not blobs.store.has(NAME)
    blobs.store.put_bytes(DATA)
    with pytest.raises(InterruptedError):
        await to_thread(stopping.download, NAME, cache)
    assert cache.committed_offset(NAME) == 2 * CHUNK_BYTES


CONTENT = b"0123456789" * 100
CONTENT_NAME = BlobName.of(CONTENT)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 1000), max_size=5), data=st.binary(max_size=1000))
def test_any_interruptions_give_the_same_blob(tmp_path: Path, cuts: list[int], data: bytes) -> None:
    store = BlobStore(tmp_path, max_blob_bytes=10_000)
    name = BlobName.of(data)
    edges = [*sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for edge in edges:
        offset = store.committed_offset(name)
        if not store.has(name):
            with store.open_upload(name, offset) as upload:
                upload.write(data[offset:edge])
                if edge == len(data):
                    upload.finish()
    assert store.read_bytes(name) == data


def test_an_unfinished_upload_is_kept_in_a_private_file(store: BlobStore) -> None:
    with store.open_upload(CONTENT_NAME, 0) as upload:
        upload.write(CONTENT[:300])
        assert store.part(CONTENT_NAME).stat().st_mode & 0o777 == 0o600
        with pytest.raises(WrongOffsetError, match="ends at byte 300"):
            upload.finish()
    assert store.committed_offset(CONTENT_NAME) == 300
    for offset in (0, 299, 301, 1000):
        with pytest.raises(WrongOffsetError, match=f"up to byte 300, not {offset}"):
            store.open_upload(CONTENT_NAME, offset)


def test_a_partial_file_longer_than_the_blob_is_discarded(store: BlobStore) -> None:
    with store.open_upload(BlobName(CONTENT_NAME.sha256, 2000), 0) as upload:
        upload.write(bytes(1500))
    assert store.committed_offset(CONTENT_NAME) == 0
    with store.open_upload(CONTENT_NAME, 0) as upload:
        upload.write(CONTENT)
        upload.finish()
    assert store.read_bytes(CONTENT_NAME) == CONTENT


def test_a_full_disk_is_one_sentence_and_keeps_the_received_part(store: BlobStore) -> None:
    with file_size_limit(500), store.open_upload(CONTENT_NAME, 0) as upload:
        upload.write(CONTENT[:300])
        with pytest.raises(StateError, match=r"File too large. Free space there"):
            upload.write(CONTENT[300:])
    assert store.committed_offset(CONTENT_NAME) == 500
    with store.open_upload(CONTENT_NAME, 500) as upload:
        upload.write(CONTENT[500:])
        upload.finish()
    assert store.read_bytes(CONTENT_NAME) == CONTENT


def test_an_upload_of_a_killed_process_can_be_resumed(store: BlobStore) -> None:
    program = """
import sys
from pathlib import Path
from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
upload = BlobStore(Path(sys.argv[1]), max_blob_bytes=10_000).open_upload(
    BlobName(sys.argv[2], 1000), 0
)
upload.write(b"0123456789" * 30)
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, store.root, CONTENT_NAME.sha256],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(UploadInProgressError, match=r"another process uploads .*Try again"):
            store.open_upload(CONTENT_NAME, 300)
        process.kill()
    with store.open_upload(CONTENT_NAME, 300) as upload:
        upload.write(CONTENT[300:])
        with pytest.raises(UploadInProgressError):
            store.open_upload(CONTENT_NAME, 1000)
        upload.finish()
    assert store.has(CONTENT_NAME)
