from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError, UnknownBlobError
from lipt.coordinator.subsets.verification import Verification


class CountingStore(BlobStore):
    """Counts how often a whole file is read, which may have to wait."""

    num_read = 0

    def __init__(self, root: Path) -> None:
        super().__init__(root, max_blob_bytes=1000)
        self.let_go = threading.Event()
        self.let_go.set()

    def verified_path(self, name: BlobName) -> Path:
        self.num_read += 1
        self.let_go.wait()
        return super().verified_path(name)


class Clock:
    """Stands still until it is set."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def blobs(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verification(blobs: CountingStore, clock: Clock) -> Verification:
    return Verification(blobs, monotonic_clock=clock)


async def test_a_hundred_who_ask_at_once_have_it_read_once(
    blobs: CountingStore, verification: Verification
) -> None:
    name = blobs.put_bytes(b"subset")
    blobs.num_read = 0
    blobs.let_go.clear()
    asking = [asyncio.ensure_future(verification.path(name)) for _ in range(100)]
    await asyncio.sleep(0)  # all of them ask
    blobs.let_go.set()
    assert {await path for path in asking} == {blobs.path(name)}
    assert await verification.is_whole(name)
    assert blobs.num_read == 1


async def test_after_a_while_it_is_read_again(
    blobs: CountingStore, verification: Verification, clock: Clock
) -> None:
    name = blobs.put_bytes(b"subset")
    for clock.seconds in (0.0, 599.0, 600.0, 1199.0):
        assert await verification.is_whole(name)
    assert blobs.num_read == 2


async def test_what_somebody_has_written_to_is_read_again(
    blobs: CountingStore, verification: Verification
) -> None:
    name = blobs.put_bytes(b"subset")
    path = await verification.path(name)
    path.write_bytes(b"SUBSET")
    for _ in range(2):
        assert not await verification.is_whole(name)
    with pytest.raises(CorruptBlobError):
        await verification.path(name)
    path.write_bytes(b"subset")
    assert await verification.is_whole(name)


async def test_what_is_gone_is_not_whole(blobs: CountingStore, verification: Verification) -> None:
    name = blobs.put_bytes(b"subset")
    (await verification.path(name)).unlink()
    assert not await verification.is_whole(name)
    with pytest.raises(UnknownBlobError):
        await verification.path(name)


async def test_only_the_latest_that_were_asked_for_are_remembered(
    blobs: CountingStore, verification: Verification, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lipt.coordinator.subsets.verification._MOST_REMEMBERED", 2)
    first, *later = (blobs.put_bytes(bytes([number])) for number in range(3))
    for name in (first, *later):
        await verification.path(name)
    blobs.num_read = 0
    for name in later:
        await verification.path(name)
    assert blobs.num_read == 0
    await verification.path(first)
    assert blobs.num_read == 1
