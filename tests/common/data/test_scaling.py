"""What is said of images that are scaled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.data import open_dataset
from lipt.common.data.loading import Sizes, scaling_note
from lipt.common.images.formats import Header

Encode = Callable[..., bytes]


def sizes(*pairs: tuple[int, int]) -> Sizes:
    first, *others = [Header(height, width, grayscale=False) for height, width in pairs]
    found = Sizes.of(first)
    for header in others:
        found = found.with_one(header)
    return found


def test_images_at_their_own_size_are_not_spoken_of() -> None:
    assert scaling_note(sizes((32, 32), (32, 32)), (3, 32, 32), 100, in_memory=True) == ""


def test_mixed_sizes_are_told_with_what_they_cost_and_how_to_choose() -> None:
    note = scaling_note(sizes((480, 640), (32, 1000)), (3, 224, 224), 1000, in_memory=False)
    # 3 x 224 x 224 = 150,528 bytes; 224^2 / 64^2 = 12.25.
    assert note == (
        "its images have sizes from 32 x 640 to 480 x 1000 and are scaled to 224 x 224: 150.5 kB "
        "each, 150.5 MB in all, decoded anew whenever they are needed; a training step takes about "
        "12 times what it would at 64 x 64. Choose another size with --image-size, such as "
        "--image-size 64"
    )


def test_a_small_size_that_was_chosen_is_told_without_advice() -> None:
    note = scaling_note(sizes((12, 10)), (1, 8, 8), 100, in_memory=True)
    assert (
        note
        == "its images have 12 x 10 pixels and are scaled to 8 x 8: 64 B each, 6.4 kB in memory"
    )


@pytest.mark.parametrize("budget", [2**30, 0])
def test_a_set_says_what_it_scales(tmp_path: Path, encode: Encode, budget: int) -> None:
    for name, size in (("a", (12, 10)), ("b", (20, 30))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encode(size=size))
    source = f"imagefolder:{tmp_path}"
    mixed = open_dataset(source, memory_budget_bytes=budget)
    assert mixed.scaling.startswith("its images have sizes from ")
    assert "scaled to 224 x 224" in mixed.scaling
    small = open_dataset(source, image_size=8, memory_budget_bytes=budget)
    assert "scaled to 8 x 8: 192 B each" in small.scaling
    assert open_dataset("digits").scaling == ""
