from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lipt.common.data import open_dataset
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.errors import DataError
from lipt.common.inputs.specs import ImageSpec

Encode = Callable[..., bytes]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows whose images were looked at."""
    rows: list[int] = []
    check = EncodedRows.check

    def counted(self: EncodedRows, row: int) -> object:
        rows.append(row)
        return check(self, row)

    monkeypatch.setattr(EncodedRows, "check", counted)
    return rows


def test_images_that_stay_encoded_are_looked_at_once(
    image_folder: Path, checked: list[int]
) -> None:
    source = f"imagefolder:{image_folder}"
    first = open_dataset(source, memory_budget_bytes=0)
    # Row 0 says the size, then all.
    assert checked == [0, 0, 1, 2, 3, 4]
    checked.clear()
    second = open_dataset(source, memory_budget_bytes=0)
    assert checked == [0]
    assert (second.inputs, second.scaling) == (first.inputs, first.scaling)
    assert torch.equal(second.images(torch.arange(5)), first.images(torch.arange(5)))


def test_images_are_looked_at_again_where_one_has_changed(
    image_folder: Path, checked: list[int], encode: Encode
) -> None:
    source = f"imagefolder:{image_folder}"
    open_dataset(source, memory_budget_bytes=0)
    checked.clear()
    (image_folder / "cat" / "1.png").write_bytes(encode(1, (30, 40)))
    assert open_dataset(source, memory_budget_bytes=0).inputs == ImageSpec(3, 224, 224)
    assert set(checked) == {0, 1, 2, 3, 4}


def test_what_images_have_in_common_is_kept(tmp_path: Path, encode: Encode) -> None:
    for name, size in (("a", (70, 80)), ("b", (90, 75))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encode(1, size, "L"))
    notes = []
    for _ in range(2):
        data = open_dataset(f"imagefolder:{tmp_path}", memory_budget_bytes=0)
        assert data.inputs == ImageSpec(1, 224, 224)
        notes.append(data.scaling)
    assert notes[0] == notes[1]
    assert "sizes from 70 x 75 to 90 x 80" in notes[0]


def test_a_set_with_a_broken_image_is_refused_every_time(
    image_folder: Path, encode: Encode
) -> None:
    (image_folder / "cat" / "1.png").write_bytes(encode(1)[:-30])
    for _ in range(2):
        with pytest.raises(DataError, match=r"1\.png\) cannot be used"):
            open_dataset(f"imagefolder:{image_folder}", memory_budget_bytes=0)
