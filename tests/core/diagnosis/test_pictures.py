from __future__ import annotations

import hashlib

import pytest
import torch

from lipt.common.inputs.specs import ImageSpec
from lipt.core.diagnosis.pictures import aligned_correlation, are_pictures, look_at


def test_digests_are_of_the_pixels() -> None:
    images = torch.arange(2 * 1 * 4 * 4, dtype=torch.uint8).view(2, 1, 4, 4)
    found = look_at(lambda ids: images[ids], 2)
    assert found.digests == [hashlib.sha256(bytes(range(k, k + 16))).digest() for k in (0, 16)]


def test_thumbnails_are_centred_and_of_unit_length() -> None:
    images = torch.zeros(2, 1, 16, 16, dtype=torch.uint8)
    images[0, :, :, 8:] = 200
    found = look_at(lambda ids: images[ids], 2)
    # Half of 64 cells above the mean: each an eighth away from it; one colour is nothing.
    assert found.thumbnails_NP[0].view(8, 8)[:, 0].tolist() == pytest.approx([-1 / 8] * 8)
    assert found.thumbnails_NP[1].abs().sum() == 0


def test_a_pixel_each_way_and_brightness_do_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    large = torch.randint(100, (1, 3, 12, 12), generator=generator, dtype=torch.uint8)
    places = [(top, left) for top in range(3) for left in range(3)]
    moved = torch.cat([2 * large[:, :, a : a + 10, b : b + 10] for a, b in places])
    middle = large[:, :, 1:11, 1:11].expand(9, -1, -1, -1)
    assert aligned_correlation(middle, moved).tolist() == pytest.approx([1.0] * 9, abs=1e-5)
    # Two pixels are another picture here, where pixels have nothing to do with each other.
    two = aligned_correlation(large[:, :, :8, :8], large[:, :, 2:10, 2:10])
    assert float(two) < 0.5


def test_the_opposite_and_one_colour_are_not_alike() -> None:
    image = torch.randint(255, (1, 1, 5, 5), generator=torch.Generator().manual_seed(0))
    image = image.to(torch.uint8)
    assert float(aligned_correlation(image, 255 - image)) < 0.9
    assert float(aligned_correlation(image, torch.full_like(image, 7))) == 0.0


@pytest.mark.parametrize(
    ("shape", "are"),
    [((1, 4, 4), True), ((3, 32, 4), True), ((1, 1, 64), False), ((1, 3, 3), False)],
)
def test_rows_of_numbers_are_no_pictures(shape: tuple[int, int, int], are: bool) -> None:
    assert are_pictures(ImageSpec(*shape)) == are


def test_the_smallest_pictures_are_compared() -> None:
    image = torch.randint(255, (1, 1, 4, 4), generator=torch.Generator().manual_seed(0))
    assert float(aligned_correlation(image, image)) == pytest.approx(1.0)
    assert float(aligned_correlation(image, 255 - image)) < 0.96
