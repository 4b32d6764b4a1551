from __future__ import annotations

import os
from pathlib import Path

import pytest

from lipt.common.data.sources import index
from lipt.common.data.sources.index import Stamp


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Ten files of three bytes."""
    paths = [tmp_path / f"{number}.png" for number in range(10)]
    for path in paths:
        path.write_bytes(b"abc")
    return paths


def test_files_that_nobody_touches_keep_their_look(files: list[Path]) -> None:
    taken = Stamp.of(files)
    files[0].read_bytes()
    assert taken.holds()
    assert Stamp.of(files) == taken


@pytest.mark.parametrize("number", [0, 4, 9])
def test_another_size_is_seen_of_every_file(files: list[Path], number: int) -> None:
    taken = Stamp.of(files)
    files[number].write_bytes(b"abcd")
    assert not taken.holds()


def test_a_file_that_is_gone_is_seen_and_seen_again_when_it_is_back(files: list[Path]) -> None:
    taken = Stamp.of(files)
    moved = files[3].rename(files[3].with_suffix(".away"))
    assert not taken.holds()
    without = Stamp.of(files)
    assert without.holds()
    moved.rename(files[3])
    assert not without.holds()


def test_another_file_of_the_same_size_and_time_is_seen_in_a_file_s_place(
    files: list[Path],
) -> None:
    taken = Stamp.of(files)
    times = files[5].stat()
    other = files[5].with_suffix(".new")
    other.write_bytes(b"xyz")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(files[5])
    assert not taken.holds()


def test_of_very_many_files_some_are_looked_at_and_their_folder(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MAX_FILES", 5)
    folder = str(files[0].parent)
    taken = Stamp.of(files, [folder])
    assert taken.paths == (*map(str, files[::2]), folder)
    other = files[1].with_suffix(".new")
    other.write_bytes(b"xyz")
    assert not taken.holds()


def test_a_folder_in_which_every_file_is_looked_at_may_get_others(files: list[Path]) -> None:
    taken = Stamp.of(files, [str(files[0].parent)])
    (files[0].parent / "notes.txt").write_text("mine")
    assert taken.holds()
