"""Broken images: all of them are named at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.data import open_dataset
from lipt.common.errors import DataError

Encode = Callable[..., bytes]
IN_MEMORY, ON_DISK = 2**30, 0


def break_files(folder: Path, encode: Encode, *, num_whole: int, num_broken: int) -> None:
    """The first ones in order are broken."""
    for name in ("a", "b"):
        (folder / name).mkdir()
    for number in range(num_broken):
        (folder / "a" / f"{number:03}.png").write_bytes(b"no image")
    for number in range(num_whole):
        (folder / "b" / f"{number:03}.png").write_bytes(encode(number))


@pytest.mark.parametrize("budget", [IN_MEMORY, ON_DISK])
def test_every_broken_image_is_named(tmp_path: Path, encode: Encode, budget: int) -> None:
    break_files(tmp_path, encode, num_whole=3, num_broken=2)
    with pytest.raises(DataError) as refused:
        open_dataset(f"imagefolder:{tmp_path}", memory_budget_bytes=budget)
    head, *lines = str(refused.value).splitlines()
    assert head == (
        f"2 of 5 images of imagefolder:{tmp_path} cannot be used. Replace them, or remove them "
        "and open the data again:"
    )
    assert [line.partition(": ")[0] for line in lines] == [
        f"image {row} ({tmp_path}/a/{row:03}.png)" for row in range(2)
    ]
    assert all("it is not a whole image" in line for line in lines)


def test_of_many_the_first_20_are_named_and_the_rest_counted(
    tmp_path: Path, encode: Encode
) -> None:
    break_files(tmp_path, encode, num_whole=3, num_broken=23)
    with pytest.raises(DataError) as refused:
        open_dataset(f"imagefolder:{tmp_path}")
    head, *lines = str(refused.value).splitlines()
    assert head.startswith("23 of 26 images of ")
    assert len(lines) == 21
    assert lines[19].startswith("image 19 ")
    assert lines[20] == "and 3 more: lipt check --data lists all"


def test_a_set_without_a_whole_image_is_refused_likewise(tmp_path: Path, encode: Encode) -> None:
    break_files(tmp_path, encode, num_whole=0, num_broken=2)
    (tmp_path / "b" / "0.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"^3 of 3 images of "):
        open_dataset(f"imagefolder:{tmp_path}")
