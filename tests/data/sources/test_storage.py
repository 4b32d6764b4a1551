import errno
import itertools
import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipt.common.errors import ConfigError, DataError, MissingExtraError
from lipt.data.loading import open_dataset
from lipt.data.registry import name_with_target
from lipt.data.sources import storage
from lipt.data.sources.address import Address
from lipt.data.sources.pairs import open_pairs
from lipt.data.sources.storage import (
    Ranges,
    Stamp,
    Storage,
    allocate_tensor,
    cached_tensors,
    open_regular,
    storage_of,
)
from lipt.data.sources.webdataset import webdataset_rows
from tests.tar_shards import samples, write_shard

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("s3fs")


def test_shards_in_memory_are_read_as_those_on_a_disk(tmp_path: Path) -> None:
    images = [bytes([i]) * 3000 for i in range(8)]
    path = write_shard(tmp_path / "a.tar", samples(images, [0, 1] * 4))
    memory, address = fsspec.filesystem("memory"), Address("x", {}, "webdataset", "memory://shards")
    memory.pipe("/shards/a.tar", path.read_bytes())
    try:
        rows = webdataset_rows(address)
        assert [rows.raw(row) for row in range(8)] == images
        assert rows.where(3) == "memory:///shards/a.tar, member 000003.png"
        assert rows.stamp is not None
        assert rows.stamp.holds()
        again = webdataset_rows(address)  # by the index that was kept
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Storage, "fetch", Mock(side_effect=PermissionError("Forbidden")))
            with pytest.raises(DataError, match=r"member 000001\.png\) .*be read: Forbidden"):
                again.raw(1)
        memory.pipe("/shards/a.tar", path.read_bytes())
        assert not rows.stamp.holds()
    finally:
        memory.rm("/shards", recursive=True)


def test_an_unreachable_store_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Mock(info=Mock(side_effect=RuntimeError("Could not connect to the endpoint URL")))
    away._strip_protocol = lambda url: url
    monkeypatch.setattr("fsspec.filesystem", lambda kind: away)
    with pytest.raises(DataError, match=r"s3://b/x cannot be read: RuntimeError: Could not conn"):
        webdataset_rows(Address("x", {}, "webdataset", "s3://b/x"))


def test_other_urls_are_opened_by_fsspec() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/somewhere/a.txt", b"0123456789")
    url = "memory:///somewhere/a.txt"
    storage = storage_of("x", url)
    assert storage.is_file(url)
    assert (storage.size(url), storage.read(url, 3, 4)) == (10, b"3456")
    assert storage.listed("memory://somewhere", ".txt", below=False) == [url]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(memory), "cat_file", lambda *_, **__: b"0123456789")
        with pytest.raises(OSError, match=r"the server sends all of .*, not the requested part"):
            storage_of("x", url).fetch(url, 2, 4)
    memory.rm("/somewhere/a.txt")
    with pytest.raises(ConfigError, match=r"x: nothing:// cannot be read: .*name another URL"):
        storage_of("x", "nothing://somewhere")


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        storage_of("webdataset:ftp://me:pass@host/x", "ftp://me:pass@host/x")
    assert "pass@" not in str(caught.value)
    assert "environment, such as AWS_SECRET_ACCESS_KEY" in str(caught.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtraError, match=r"'s3fs'.*pip install '\.\[remote\]'"):
        open_dataset("webdataset:s3://bucket/x")


KIB = 2**10


class Fetched:
    def __init__(self, size: int) -> None:
        self.content = bytes(i % 251 for i in range(size))
        self.parts: list[tuple[int, int]] = []

    def __call__(self, start: int, end: int) -> bytes:
        self.parts.append((start, end))
        return self.content[start:end]


def test_sequential_reads_fetch_growing_blocks() -> None:
    file = Fetched(200 * KIB)
    ranges = Ranges(file)
    read = b"".join(ranges.read(offset, KIB) for offset in range(0, 200 * KIB, KIB))
    assert read == file.content
    ends = [0, 16 * KIB, 48 * KIB, 112 * KIB, 240 * KIB]
    assert file.parts == list(itertools.pairwise(ends))


@given(
    size=st.integers(0, 100_000),
    reads=st.lists(st.tuples(st.integers(0, 110_000), st.integers(0, 40_000)), max_size=12),
)
def test_a_window_reads_the_bytes_of_a_slice(size: int, reads: list[tuple[int, int]]) -> None:
    file = Fetched(size)
    ranges = Ranges(file)
    for offset, some in reads:
        assert ranges.read(offset, some) == file.content[offset : offset + some]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.png" for number in range(10)]
    for path in paths:
        path.write_bytes(b"abc")
    return paths


def test_changed_files_are_detected(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Stamp.of(files)
    moved = files[3].rename(files[3].with_suffix(".away"))
    assert not taken.holds()
    without = Stamp.of(files)
    assert without.holds()
    moved.rename(files[3])
    assert not without.holds()
    # Another file of the same size and time.
    taken = Stamp.of(files)
    times = files[5].stat()
    other = files[5].with_suffix(".new")
    other.write_bytes(b"xyz")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(files[5])
    assert not taken.holds()
    # Of very many files some are looked at, and their folder.
    monkeypatch.setattr(storage, "MAX_FILES", 5)
    folder = str(files[0].parent)
    taken = Stamp.of(files, [folder])
    assert taken.paths == (*map(str, files[::2]), folder)
    other = files[1].with_suffix(".new")
    other.write_bytes(b"xyz")
    assert not taken.holds()


def test_tensors_are_made_once_and_the_last_used_stay(
    indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def make(number: int) -> Mapping[str, Tensor]:
        if number < 0:
            raise DataError("broken")
        made.append(number)
        return {"a": torch.arange(5), "empty": torch.empty(0)}

    def kept(number: int) -> Mapping[str, Tensor]:
        return cached_tensors("rows", ("x", number), partial(make, number))

    with pytest.raises(DataError, match="broken"):
        kept(-1)
    assert not indexes.exists()
    for found in (kept(0), kept(0), kept(0)):
        assert (found["a"].tolist(), found["empty"].tolist()) == ([0, 1, 2, 3, 4], [])
    assert made == [0]
    (size,) = {path.stat().st_size for path in indexes.iterdir()}
    monkeypatch.setattr(storage, "MOST_BYTES", size)
    kept(1)
    assert len(list(indexes.iterdir())) == 1
    # Mapped files may go; what was mapped stays readable.
    assert found["a"].tolist() == [0, 1, 2, 3, 4]


def mapped_files(folder: Path) -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(folder) in line]


linux_only = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")


@linux_only
def test_large_arrays_are_mapped_from_an_unlinked_file(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    values = allocate_tensor((10, 3), torch.float16, folder, memory_bytes=59)
    assert (values.shape, values.dtype) == ((10, 3), torch.float16)
    assert len(mapped_files(folder)) == 1
    assert list(folder.iterdir()) == []
    values.fill_(2)
    values[4] = 7
    assert values.sum() == 2 * 27 + 7 * 3
    row = values[4]
    del values
    assert row.tolist() == [7, 7, 7]
    del row
    assert mapped_files(folder) == []


def test_a_full_disk_is_logged_and_memory_is_used_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("os.posix_fallocate", full)
    with caplog.at_level(logging.WARNING):
        values = allocate_tensor((4, 2), torch.float32, tmp_path, memory_bytes=0)
    assert values.fill_(1).sum() == 8
    assert "held in memory" in caplog.text
    assert "No space left" in caplog.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("csv:a\0b", "a character that no file's name has, such as NUL"),
        ("csv:a.csv?classes=%00", "a character that no file's name has"),
        ("features:\ud800", "a character that no file's name has"),
        ("a" * 256, "a part of 256 bytes; .* at most 255"),
        ("cifar10:/data/" + 128 * "\u00e9", "a part of 256 bytes"),
        ("imagefolder:" + 5000 * "a/", "10012 characters and 10012 with its options"),
        ("imagefolder:" + "a" * 10**6, "a part of 1000000 bytes"),
        ("csv:a.csv?drop=" + "a" * 2**18, "9 characters and 262159 with its options"),
        ("webdataset:{" + "a," * 10**6 + "}", "2000013 characters"),
    ],
)
def test_names_that_no_file_has_are_refused_in_a_short_message(name: str, words: str) -> None:
    for read in (open_dataset, open_pairs, lambda given: name_with_target(given, "y")):
        with pytest.raises(ConfigError, match=words) as caught:
            read(name)
        assert len(str(caught.value)) < 300


def test_the_home_of_an_unknown_user_is_a_missing_file() -> None:
    with pytest.raises(DataError, match=r"~nobody-is-this/a.csv cannot be read: .*No such file"):
        open_dataset("csv:~nobody-is-this/a.csv")


def test_a_path_out_of_a_table_may_be_none(tmp_path: Path) -> None:
    for name in ("a\0b.png", "\ud800.png"):
        with pytest.raises(OSError, match="is no path"):
            open_regular(name)
        assert Stamp.of([name]).holds()
