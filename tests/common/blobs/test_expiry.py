from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import directory_lock
from lipt.common.blobs.store import BlobStore

LONG_AGO, LATELY, NOW = 1_000.0, 2_000_000_000.0, 4_000_000_000.0
NUM_RACES = 300


def aged(store: BlobStore, content: bytes, used_at: float = LONG_AGO) -> BlobName:
    name = store.put_bytes(content)
    os.utime(store.path(name), (used_at, used_at))
    return name


def age_part(store: BlobStore, name: BlobName, heard_at: float) -> None:
    os.utime(store.root / "uploads" / f"{name.sha256}.part", (heard_at, heard_at))


def begin(store: BlobStore, content: bytes) -> BlobName:
    name = BlobName.of(content)
    with store.open_upload(name, 0) as upload:
        upload.write(content[:1])
    return name


def test_blob_is_removed_when_it_was_not_used_for_long(store: BlobStore) -> None:
    old, new = aged(store, b"old"), aged(store, b"new", used_at=LATELY)
    removed = [store.expiry.remove_blob(it.sha256, before=LATELY - 1) for it in (old, new, old)]
    assert removed == [True, False, False]
    assert [
        (it.sha256, it.size_bytes, it.used_at)
        for it in map(store.expiry.blob, store.expiry.digests())
        if it
    ] == [(new.sha256, 3, LATELY)]


def test_use_makes_an_old_blob_young(store: BlobStore) -> None:
    name = aged(store, b"old")
    assert store.use(name)
    assert not store.expiry.remove_blob(name.sha256, before=LONG_AGO)
    assert store.has(name)


def test_upload_that_is_finished_is_young_however_old_its_last_byte(store: BlobStore) -> None:
    name = BlobName.of(b"xy")
    with store.open_upload(name, 0) as upload:
        upload.write(b"xy")
    age_part(store, name, LONG_AGO)
    with store.open_upload(name, 2) as upload:
        upload.finish()
    assert not store.expiry.remove_blob(name.sha256, before=LONG_AGO)


def test_held_blob_stays_until_the_last_who_holds_it_has_left(store: BlobStore) -> None:
    name = aged(store, b"old")
    with store.expiry.holding(name.sha256):
        with store.expiry.holding(name.sha256):
            pass
        assert not store.expiry.remove_blob(name.sha256, before=NOW)
    assert store.expiry.remove_blob(name.sha256, before=NOW)


def test_beginning_is_removed_when_it_got_no_byte_for_long(store: BlobStore) -> None:
    old, new = begin(store, b"old one"), begin(store, b"new one")
    age_part(store, old, LONG_AGO)
    removed = [store.expiry.remove_part(it.sha256, before=LONG_AGO) for it in (old, new)]
    assert removed == [True, False]
    assert [part.sha256 for part in store.expiry.parts()] == [new.sha256]
    assert store.committed_offset(old) == 0


def test_beginning_that_is_being_sent_stays(store: BlobStore) -> None:
    name = begin(store, b"on its way")
    with store.open_upload(name, 1):
        age_part(store, name, LONG_AGO)
        assert not store.expiry.remove_part(name.sha256, before=NOW)
    age_part(store, name, LONG_AGO)
    assert store.expiry.remove_part(name.sha256, before=NOW)


def test_removal_waits_for_another_process_that_uses_a_blob_of_the_same_folder(
    store: BlobStore,
) -> None:
    name = aged(store, b"old")
    folder = store.path(name).parent
    with ThreadPoolExecutor(1) as pool:
        # Another descriptor: as far as the lock goes, another process.
        with directory_lock(folder, exclusive=False):
            removing = pool.submit(store.expiry.remove_blob, name.sha256, before=LONG_AGO)
            os.utime(folder / name.sha256)
            assert not removing.done()
        assert removing.result() is False


@pytest.mark.parametrize("acknowledge", [BlobStore.use, lambda store, _: store.put_bytes(b"old")])
def test_what_was_acknowledged_is_there_whenever_its_removal_was_decided(
    store: BlobStore, acknowledge: object
) -> None:
    assert callable(acknowledge)
    start = threading.Barrier(2)

    def remove(sha256: str) -> bool:
        start.wait()
        return store.expiry.remove_blob(sha256, before=LONG_AGO)

    with ThreadPoolExecutor(1) as pool:
        for _ in range(NUM_RACES):
            name = aged(store, b"old")
            removing = pool.submit(remove, name.sha256)
            start.wait()
            acknowledged = bool(acknowledge(store, name))
            removing.result()
            assert store.has(name) is acknowledged
