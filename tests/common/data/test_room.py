"""Where room is made, what stays behind of it, and what happens where there is none."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
import torch

from lipt.common.data.sources.index import make_room


def mapped_files(folder: Path) -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(folder) in line]


linux_only = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")


@linux_only
def test_what_is_large_is_mapped_from_a_file_without_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    values = make_room((10, 3), torch.float16, folder, memory_bytes=59)
    assert values.shape == (10, 3)
    assert values.dtype == torch.float16
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


@linux_only
def test_what_is_small_or_has_no_folder_is_in_memory(tmp_path: Path) -> None:
    folder = tmp_path / "not made"
    small = make_room((10, 3), torch.float16, folder, memory_bytes=60)
    nowhere = make_room((10, 3), torch.float16, None, memory_bytes=0)
    assert small.shape == nowhere.shape == (10, 3)
    assert not folder.exists()


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
