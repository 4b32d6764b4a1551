from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import temporary_file
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import (
    BlobTooLargeError,
    CorruptBlobError,
    StateError,
    UnknownBlobError,
)
from tests.blob_files import file_size_limit, files_of

DATA = b"0123456789" * 100
NAME = BlobName.of(DATA)


def test_blob_that_is_not_whole_makes_way_for_the_right_one(store: BlobStore) -> None:
    store.put_bytes(DATA)
    assert store.keep_if_whole(NAME)
    store.path(NAME).write_bytes(DATA[::-1])
    assert not store.keep_if_whole(NAME)
    assert not store.has(NAME)
    assert not store.keep_if_whole(NAME)
    assert store.read_bytes(store.put_bytes(DATA)) == DATA


def test_keeps_a_content_under_its_digest(store: BlobStore) -> None:
    assert not store.has(NAME)
    assert store.put_bytes(DATA) == NAME
    assert store.has(NAME)
    assert store.read_bytes(NAME) == DATA
    assert store.path(NAME).read_bytes() == DATA
    assert store.find(NAME.sha256) == NAME
    assert files_of(store) == [f"blobs/{NAME.sha256[:2]}/{NAME.sha256}"]


def test_a_damaged_file_is_replaced_when_its_content_is_stored_again(store: BlobStore) -> None:
    name = store.put_bytes(b"content")
    store.path(name).write_bytes(b"c0ntent")
    assert store.put_bytes(b"content") == name
    assert store.read_bytes(name) == b"content"


def test_unknown_blobs_are_named(store: BlobStore) -> None:
    for ask in (store.path, store.read_bytes):
        with pytest.raises(UnknownBlobError, match=f"no blob {NAME.sha256[:12]}"):
            ask(NAME)
    with pytest.raises(UnknownBlobError, match="Upload it first"):
        store.find(NAME.sha256)
    store.put_bytes(DATA)
    assert not store.has(BlobName(NAME.sha256, NAME.size_bytes + 1))


def test_a_damaged_file_is_noticed_when_it_is_read(store: BlobStore) -> None:
    store.put_bytes(DATA)
    store.path(NAME).write_bytes(DATA[:-1] + b"x")
    with pytest.raises(CorruptBlobError, match="does not hold blob"):
        store.read_bytes(NAME)


def test_too_large_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_blob_bytes=999)
    for ask in (
        lambda: store.put_bytes(DATA),
        lambda: store.committed_offset(NAME),
        lambda: store.open_upload(NAME, 0),
    ):
        with pytest.raises(BlobTooLargeError, match="1000 bytes; at most 999 are stored"):
            ask()
    assert files_of(store) == []


def test_a_full_disk_leaves_no_half_written_blob(store: BlobStore) -> None:
    with file_size_limit(500), pytest.raises(StateError, match="File too large"):
        store.put_bytes(DATA)
    assert files_of(store) == []


def test_a_directory_that_goes_while_it_is_used_is_named(store: BlobStore) -> None:
    shutil.rmtree(store.root)
    store.root.touch()
    for ask in (store.has, store.path, store.committed_offset, store.is_whole):
        with pytest.raises(StateError, match="Not a directory"):
            ask(NAME)
    with pytest.raises(StateError, match="Not a directory"):
        store.find(NAME.sha256)


def test_uploads_that_were_tidied_away_are_made_again(store: BlobStore) -> None:
    shutil.rmtree(store.root / "uploads")
    assert store.read_bytes(store.put_bytes(DATA)) == DATA
    other = BlobName.of(DATA[::-1])
    shutil.rmtree(store.root / "uploads")
    with store.open_upload(other, 0) as upload:
        upload.write(DATA[::-1])
        upload.finish()
    assert store.has(other)


def test_a_store_that_is_gone_is_not_begun_anew(store: BlobStore) -> None:
    shutil.rmtree(store.root)
    for write in (lambda: store.put_bytes(DATA), lambda: store.open_upload(NAME, 0)):
        with pytest.raises(StateError, match=r"No such file.*It was removed .*put it back, or"):
            write()
    assert not store.root.exists()


def test_content_and_name_are_synced_around_the_rename(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_bytes(DATA)
    store.path(NAME).unlink()
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        calls.append("fsync file" if is_file else "fsync directory")
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    store.put_bytes(DATA)
    assert calls == ["fsync file", "rename", "fsync directory"]


def test_files_of_dead_processes_go_those_of_living_ones_stay(store: BlobStore) -> None:
    uploads = store.root / "uploads"
    stale = uploads / "dead.tmp"
    stale.write_bytes(b"half")
    with temporary_file(uploads) as (_, living):
        BlobStore(store.root, max_blob_bytes=10_000)
        assert not stale.exists()
        assert living.exists()
    assert not living.exists()


def test_blobs_do_not_load_torch() -> None:
    program = "import sys, lipt.common.blobs.transfer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_trimming_a_cache_deletes_what_was_unused_for_longest(store: BlobStore) -> None:
    old, used, new = (store.put_bytes(bytes([number]) * 100) for number in range(3))
    for age, name in enumerate((new, old)):
        os.utime(store.path(name), (1000 - age, 1000 - age))
    store.trim(200, keep=used)
    assert [store.has(name) for name in (old, used, new)] == [False, True, True]
    store.trim(0, keep=used)
    assert [store.has(name) for name in (old, used, new)] == [False, True, False]
