import os
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.files import directory_lock, temporary_file
from lipt.common.blobs.store import BlobStore, StoredFile
from lipt.common.errors import BlobTooLargeError, CorruptBlobError, StateError
from tests.blob_files import file_size_limit, files_of

DATA = b"0123456789" * 100
NAME = BlobName.of(DATA)


def test_content_is_stored_under_its_digest(store: BlobStore) -> None:
    assert not store.has(NAME)
    assert store.put_bytes(DATA) == NAME
    assert store.has(NAME)
    assert store.read_bytes(NAME) == DATA
    assert store.path(NAME).read_bytes() == DATA
    assert store.find(NAME.sha256) == NAME
    assert files_of(store) == [f"blobs/{NAME.sha256[:2]}/{NAME.sha256}"]


def test_a_damaged_blob_is_detected_by_reads_and_replaced_by_writes(store: BlobStore) -> None:
    store.put_bytes(DATA)
    assert store.is_whole(NAME, remove_damaged=True)
    store.path(NAME).write_bytes(DATA[:-1] + b"x")
    with pytest.raises(CorruptBlobError, match="does not hold blob"):
        store.read_bytes(NAME)
    assert not store.is_whole(NAME)
    assert store.read_bytes(store.put_bytes(DATA)) == DATA
    store.path(NAME).write_bytes(DATA[::-1])
    assert not store.is_whole(NAME, remove_damaged=True)
    assert files_of(store) == []
    assert store.read_bytes(store.put_bytes(DATA)) == DATA
    store.path(NAME).write_bytes(DATA[:-1])
    assert not store.has(NAME)


def test_a_too_large_blob_is_refused_before_writing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_blob_bytes=999)
    for ask in (
        lambda: store.put_bytes(DATA),
        lambda: store.committed_offset(NAME),
        lambda: store.open_upload(NAME, 0),
    ):
        with pytest.raises(BlobTooLargeError, match="1000 bytes; at most 999 are stored"):
            ask()
    assert files_of(store) == []


def test_a_full_disk_leaves_no_partial_blob(store: BlobStore) -> None:
    with file_size_limit(500), pytest.raises(StateError, match="File too large"):
        store.put_bytes(DATA)
    assert files_of(store) == []


def test_a_removed_upload_folder_is_recreated_but_not_a_removed_store(store: BlobStore) -> None:
    shutil.rmtree(store.root / "uploads")
    assert store.read_bytes(store.put_bytes(DATA)) == DATA
    other = BlobName.of(DATA[::-1])
    shutil.rmtree(store.root / "uploads")
    with store.open_upload(other, 0) as upload:
        upload.write(DATA[::-1])
        upload.finish()
    assert store.has(other)
    shutil.rmtree(store.root)
    for write in (lambda: store.put_bytes(DATA), lambda: store.open_upload(NAME, 0)):
        with pytest.raises(StateError, match=r"No such file.*put back what was removed, or"):
            write()
    assert not store.root.exists()


def test_content_and_directory_are_synced(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_bytes(DATA)
    store.path(NAME).unlink()
    calls: list[str] = []
    replace = Path.replace

    def fsync(descriptor: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        calls.append("fsync file" if is_file else "fsync directory")

    def rename(source: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    store.put_bytes(DATA)
    assert calls == ["fsync file", "rename", "fsync directory"]


def test_only_temporary_files_of_dead_processes_are_removed(store: BlobStore) -> None:
    uploads = store.root / "uploads"
    stale = uploads / "dead.tmp"
    stale.write_bytes(b"half")
    with temporary_file(uploads) as (_, living):
        BlobStore(store.root, max_blob_bytes=10_000)
        assert not stale.exists()
        assert living.exists()
    assert not living.exists()


def test_cache_trimming_removes_the_least_recently_used_blobs(store: BlobStore) -> None:
    old, used, new = (store.put_bytes(bytes([number]) * 100) for number in range(3))
    for age, name in enumerate((new, old)):
        os.utime(store.path(name), (1000 - age, 1000 - age))
    store.trim(200, keep=used)
    assert [store.has(name) for name in (old, used, new)] == [False, True, True]
    # As after the clock was set back.
    os.utime(store.path(new), (4e9, 4e9))
    store.trim(0, keep=used)
    assert [store.has(name) for name in (old, used, new)] == [False, True, False]


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


def test_blob_expires_after_its_last_use_or_upload(store: BlobStore) -> None:
    old, new = aged(store, b"old"), aged(store, b"new", used_at=LATELY)
    removed = [store.expiry.remove_blob(it.sha256, before=LATELY - 1) for it in (old, new, old)]
    assert removed == [True, False, False]
    left = [store.expiry.blob(digest) for digest in store.expiry.digests()]
    assert left == [StoredFile(new.sha256, 3, LATELY)]
    name = BlobName.of(b"xy")
    with store.open_upload(name, 0) as upload:
        upload.write(b"xy")
    age_part(store, name, LONG_AGO)
    with store.open_upload(name, 2) as upload:
        upload.finish()
    assert not store.expiry.remove_blob(name.sha256, before=LONG_AGO)


def test_held_blob_stays_until_its_last_holder_releases_it(store: BlobStore) -> None:
    name = aged(store, b"old")
    with store.expiry.holding(name.sha256):
        with store.expiry.holding(name.sha256):
            pass
        assert not store.expiry.remove_blob(name.sha256, before=NOW)
    assert store.expiry.remove_blob(name.sha256, before=NOW)


def test_unfinished_upload_expires_without_new_bytes_unless_open(store: BlobStore) -> None:
    old, new = begin(store, b"old one"), begin(store, b"new one")
    with store.open_upload(old, 1):
        age_part(store, old, LONG_AGO)
        assert not store.expiry.remove_part(old.sha256, before=NOW)
    age_part(store, old, LONG_AGO)
    removed = [store.expiry.remove_part(it.sha256, before=LONG_AGO) for it in (old, new)]
    assert removed == [True, False]
    assert [part.name for part in store.expiry.parts()] == [new.sha256]
    assert store.committed_offset(old) == 0


def test_removal_waits_for_a_process_that_uses_the_same_folder(store: BlobStore) -> None:
    name = aged(store, b"old")
    folder = store.path(name).parent
    with ThreadPoolExecutor(1) as pool:
        # Another descriptor: as far as the lock goes, another process.
        with directory_lock(folder, exclusive=False):
            removing = pool.submit(store.expiry.remove_blob, name.sha256, before=LONG_AGO)
            with pytest.raises(TimeoutError):
                removing.result(timeout=0.3)
            os.utime(folder / name.sha256)
        assert removing.result() is False


@pytest.mark.parametrize("acknowledge", [BlobStore.use, lambda store, _: store.put_bytes(b"old")])
def test_removal_never_removes_an_acknowledged_blob(store: BlobStore, acknowledge: object) -> None:
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
