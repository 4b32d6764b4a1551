from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from lipt.common.data import open_dataset
from lipt.common.errors import DataError, StateError
from lipt.coordinator.compute.context import with_kept_quarantine

pytest.importorskip("sklearn")
DIGITS = open_dataset("digits")


def quarantined(folder: Path, *ids: int) -> tuple[int, ...]:
    return with_kept_quarantine(replace(DIGITS, quarantined=ids), folder).quarantined


def test_an_image_that_was_repaired_stays_out(tmp_path: Path) -> None:
    assert quarantined(tmp_path, 3, 8) == (3, 8)
    assert quarantined(tmp_path, 8) == (3, 8)
    assert quarantined(tmp_path) == (3, 8)


def test_an_image_that_broke_since_then_is_refused(tmp_path: Path) -> None:
    quarantined(tmp_path, 3)
    with pytest.raises(DataError, match=r"^2 images of digits cannot be used .* made: 5, 9\."):
        quarantined(tmp_path, 3, 5, 9)


def test_whole_data_stays_whole(tmp_path: Path) -> None:
    assert quarantined(tmp_path) == ()
    with pytest.raises(DataError, match="1 images"):
        quarantined(tmp_path, 0)


def test_other_data_has_a_quarantine_of_its_own(tmp_path: Path) -> None:
    quarantined(tmp_path)
    other = replace(DIGITS, fingerprint="other", quarantined=(1,))
    assert with_kept_quarantine(other, tmp_path).quarantined == (1,)


@pytest.mark.parametrize("content", ["", "{}", '["a"]', "[1", "\x00"])
def test_a_damaged_file_is_not_guessed_at(tmp_path: Path, content: str) -> None:
    quarantined(tmp_path, 3)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    with pytest.raises(StateError, match="Restore it from a backup"):
        quarantined(tmp_path, 3)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("os.fsync", full)


@pytest.mark.usefixtures("full_disk")
def test_whole_data_is_served_from_a_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert quarantined(tmp_path) == ()
    assert "is not noted" in caplog.text


@pytest.mark.usefixtures("full_disk")
def test_what_is_left_out_has_to_be_kept(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"cannot be kept .* Make room"):
        quarantined(tmp_path, 3)
