"""Quarantine: a set with broken images is the set without them, each under its own number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lipt.common.data import Bearable, all_labels, open_dataset, without_quarantined
from lipt.common.data.dataset import Numbering
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.errors import DataError

Encode = Callable[..., bytes]
IN_MEMORY, ON_DISK = 2**30, 0
# In the folder below: the first of a, one in the middle of b's, the last of c.
BROKEN = (0, 5, 9)
budgets = pytest.mark.parametrize("budget", [IN_MEMORY, ON_DISK])


@pytest.fixture
def folder(tmp_path: Path, encode: Encode) -> Path:
    """Ten images of three classes, of which three are broken, each in a way of its own."""
    names = ["a/0", "a/1", "a/2", "b/0", "b/1", "b/2", "b/3", "c/0", "c/1", "c/2"]
    for number, name in enumerate(names):
        path = tmp_path / "all" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number, (40, 40), kind="JPEG"))
    empty, garbled, cut = (tmp_path / "all" / f"{names[row]}.jpg" for row in BROKEN)
    empty.write_bytes(b"")
    content = bytearray(garbled.read_bytes())
    # Header and end are whole, which a look at them cannot tell.
    content[len(content) // 2 : -2] = bytes(len(content) - 2 - len(content) // 2)
    del content[len(content) // 3 : -2]
    garbled.write_bytes(bytes(content))
    cut.write_bytes(cut.read_bytes()[:300])
    return tmp_path / "all"


@budgets
def test_more_than_there_may_be_are_refused_and_named(folder: Path, budget: int) -> None:
    with pytest.raises(DataError) as refused:
        open_dataset(
            f"imagefolder:{folder}", memory_budget_bytes=budget, bearable=Bearable(at_most=2)
        )
    head, *lines = str(refused.value).splitlines()
    assert head.startswith("3 of 10 images of ")
    assert "and at most 2 may be left out" in head
    assert [line.split(" (")[0] for line in lines] == [f"image {row}" for row in BROKEN]


@budgets
def test_as_many_as_there_may_be_are_left_out_and_named(
    folder: Path, budget: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        caplog.clear()
        dataset = open_dataset(
            f"imagefolder:{folder}", memory_budget_bytes=budget, bearable=Bearable(at_most=3)
        )
        assert (len(dataset), dataset.quarantined) == (10, BROKEN)
        assert "3 of 10 images of" in caplog.text
        assert "are left out: 0, 5, 9" in caplog.text


@budgets
def test_what_is_left_are_the_others_in_their_order(folder: Path, budget: int) -> None:
    source = f"imagefolder:{folder}"
    opened = open_dataset(source, memory_budget_bytes=budget, bearable=Bearable(at_most=3))
    dataset = without_quarantined(opened)
    ids = Numbering(BROKEN).ids(torch.arange(7))
    assert (len(dataset), ids.tolist()) == (7, [1, 2, 3, 4, 6, 7, 8])
    assert dataset.labels_N.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert all_labels(dataset).tolist() == opened.labels_N.tolist()
    assert torch.equal(dataset.images(torch.arange(7)), opened.images(ids))
    assert [dataset.raw_bytes(place) for place in range(7)] == [
        opened.raw_bytes(row) for row in ids.tolist()
    ]
    assert dataset.fingerprint == opened.fingerprint
    assert dataset.full_fingerprint == opened.full_fingerprint
    assert not dataset.has_changed()


def test_images_that_are_known_to_be_broken_are_not_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    check = EncodedRows.check

    def counted(self: EncodedRows, row: int) -> object:
        looked.append(row)
        return check(self, row)

    monkeypatch.setattr(EncodedRows, "check", counted)
    dataset = open_dataset(
        f"imagefolder:{folder}", memory_budget_bytes=ON_DISK, bearable=Bearable(known=BROKEN)
    )
    assert dataset.quarantined == BROKEN
    assert not set(looked) & set(BROKEN)


def test_every_image_is_decoded_once_where_some_may_be_broken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    decode = EncodedRows.read

    def counted(self: EncodedRows, row: int, *args: object) -> object:
        read.append(row)
        return decode(self, row, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(EncodedRows, "read", counted)
    for _ in range(2):
        open_dataset(
            f"imagefolder:{folder}", memory_budget_bytes=ON_DISK, bearable=Bearable(at_most=3)
        )
    assert sorted(read) == list(range(10))


def test_a_whole_set_is_itself(image_folder: Path) -> None:
    opened = open_dataset(f"imagefolder:{image_folder}", bearable=Bearable(at_most=3))
    assert without_quarantined(opened) is opened
    assert all_labels(opened) is opened.labels_N
