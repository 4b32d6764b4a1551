from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lipt.common.data.sources import index
from lipt.common.data.sources.index import kept
from lipt.common.errors import DataError


class Made:
    """Counts how often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Mapping[str, Tensor]:
        self.times += 1
        return {"a": torch.arange(5), "empty": torch.empty(0)}


def test_what_was_made_once_is_found_again() -> None:
    made = Made()
    for _ in range(3):
        found = kept("rows", ("x", 1), made)
        assert found["a"].tolist() == [0, 1, 2, 3, 4]
        assert found["empty"].tolist() == []
    assert made.times == 1


def test_what_depends_on_something_else_is_made_anew() -> None:
    made = Made()
    for kind, depends_on in (("rows", ("x", 1)), ("rows", ("x", 2)), ("sizes", ("x", 1))):
        kept(kind, depends_on, made)
    assert made.times == 3


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_what_is_damaged_is_made_again(
    indexes: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    made = Made()
    kept("rows", ("x",), made)
    (path,) = indexes.iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content if damage is None else damage)
    assert kept("rows", ("x",), made)["a"].tolist() == [0, 1, 2, 3, 4]
    assert made.times == 2
    assert "is damaged: it is made again" in caplog.text
    assert len(list(indexes.iterdir())) == 1


def test_a_directory_that_cannot_be_written_is_told_and_done_without(
    indexes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    indexes.parent.parent.mkdir(exist_ok=True)
    indexes.parent.write_text("a file in its place")
    made = Made()
    with caplog.at_level(logging.WARNING):
        assert kept("rows", ("x",), made)["a"].tolist() == [0, 1, 2, 3, 4]
    assert "the next opening scans again" in caplog.text
    assert "XDG_CACHE_HOME" in caplog.text


def test_nothing_is_kept_of_what_failed(indexes: Path) -> None:
    def fails() -> Mapping[str, Tensor]:
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        kept("rows", ("x",), fails)
    assert not indexes.exists()


def test_many_at_once_leave_one_whole_file(indexes: Path) -> None:
    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(lambda _: kept("rows", ("x",), Made()), range(32)))
    assert all(tensors["a"].tolist() == [0, 1, 2, 3, 4] for tensors in found)
    assert len(list(indexes.iterdir())) == 1


def test_those_used_last_stay(indexes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_FILES", 2)
    made = Made()
    first = kept("rows", (0,), made)
    for number in (1, 2, 3):
        kept("rows", (number,), made)
    assert len(list(indexes.iterdir())) == 2
    # Mapped files may go; what was mapped stays readable.
    assert first["a"].tolist() == [0, 1, 2, 3, 4]


def test_large_ones_make_older_ones_go_but_the_last_stays(
    indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made()
    for number in range(2):
        kept("rows", (number,), made)
    (size,) = {path.stat().st_size for path in indexes.iterdir()}
    monkeypatch.setattr(index, "MOST_BYTES", 2 * size)
    kept("rows", (2,), made)
    assert len(list(indexes.iterdir())) == 2
    monkeypatch.setattr(index, "MOST_BYTES", size - 1)
    kept("rows", (3,), made)
    (last,) = indexes.iterdir()
    kept("rows", (3,), made)
    assert made.times == 4
    assert last.exists()
