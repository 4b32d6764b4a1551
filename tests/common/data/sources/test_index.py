import errno
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lipt.common.data.sources import index
from lipt.common.data.sources.index import Stamp, kept, make_room
from lipt.common.errors import DataError


class Made:
    """Counts how often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Mapping[str, Tensor]:
        self.times += 1
        return {"a": torch.arange(5), "empty": torch.empty(0)}


def keep(made: Made, number: int = 0) -> list[int]:
    found = kept("rows", ("x", number), made)
    assert found["empty"].tolist() == []
    return list(found["a"].tolist())


def test_what_was_made_once_is_found_again_and_nothing_is_kept_of_what_failed(
    indexes: Path,
) -> None:
    def fails() -> Mapping[str, Tensor]:
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        kept("rows", ("x", 0), fails)
    assert not indexes.exists()
    made = Made()
    assert [keep(made) for _ in range(3)] == [[0, 1, 2, 3, 4]] * 3
    assert made.times == 1


@pytest.mark.parametrize("damage", [b"", None])
def test_what_is_damaged_is_made_again(
    indexes: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    made = Made()
    keep(made)
    (path,) = indexes.iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content if damage is None else damage)
    assert keep(made) == [0, 1, 2, 3, 4]
    assert made.times == 2
    assert "is damaged: it is made again" in caplog.text
    assert len(list(indexes.iterdir())) == 1


def test_a_directory_that_cannot_be_written_is_told_and_done_without(
    indexes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    indexes.parent.parent.mkdir(exist_ok=True)
    indexes.parent.write_text("a file in its place")
    with caplog.at_level(logging.WARNING):
        assert keep(Made()) == [0, 1, 2, 3, 4]
    assert "the next opening scans again" in caplog.text
    assert "XDG_CACHE_HOME" in caplog.text


def test_many_at_once_leave_one_whole_file(indexes: Path) -> None:
    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(lambda _: keep(Made()), range(32)))
    assert found == [[0, 1, 2, 3, 4]] * 32
    assert len(list(indexes.iterdir())) == 1


def test_large_ones_make_older_ones_go_but_the_last_stays(
    indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made()
    first = kept("rows", ("x", 0), made)
    keep(made, 1)
    (size,) = {path.stat().st_size for path in indexes.iterdir()}
    monkeypatch.setattr(index, "MOST_BYTES", 2 * size)
    keep(made, 2)
    assert len(list(indexes.iterdir())) == 2
    # Mapped files may go; what was mapped stays readable.
    assert first["a"].tolist() == [0, 1, 2, 3, 4]
    monkeypatch.setattr(index, "MOST_BYTES", size - 1)
    keep(made, 3)
    (last,) = indexes.iterdir()
    keep(made, 3)
    assert made.times == 4
    assert last.exists()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Ten files of three bytes."""
    paths = [tmp_path / f"{number}.png" for number in range(10)]
    for path in paths:
        path.write_bytes(b"abc")
    return paths


def test_files_that_go_come_back_or_are_replaced_are_noticed(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(index, "MAX_FILES", 5)
    folder = str(files[0].parent)
    taken = Stamp.of(files, [folder])
    assert taken.paths == (*map(str, files[::2]), folder)
    other = files[1].with_suffix(".new")
    other.write_bytes(b"xyz")
    assert not taken.holds()


def mapped_files(folder: Path) -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(folder) in line]


linux_only = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")


@linux_only
def test_what_is_large_is_mapped_from_a_file_without_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    values = make_room((10, 3), torch.float16, folder, memory_bytes=59)
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


def test_a_full_disk_is_told_and_memory_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with caplog.at_level(logging.WARNING):
        values = make_room((4, 2), torch.float32, tmp_path, memory_bytes=0)
    assert values.fill_(1).sum() == 8
    assert "held in memory" in caplog.text
    assert "No space left" in caplog.text
