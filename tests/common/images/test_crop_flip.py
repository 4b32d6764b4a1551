from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from lipt.common.images.crop_flip import crop_flip


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(50, 3, 32, 32), (50, 1, 8, 8), (50, 3, 5, 9)], ids=str)
def test_every_image_is_a_crop_of_its_padded_self_or_the_mirror_of_one(
    shape: tuple[int, int, int, int],
) -> None:
    images_BCHW = torch.randint(1, 256, shape, generator=seeded(1)).to(torch.uint8)
    before = images_BCHW.clone()
    cropped = crop_flip(images_BCHW, generator=seeded())
    padded = functional.pad(images_BCHW, [4, 4, 4, 4])
    _, _, height, width = shape
    for index, image in enumerate(cropped):
        crops = [
            padded[index, :, top : top + height, left : left + width]
            for top in range(9)
            for left in range(9)
        ]
        assert any(torch.equal(image, crop) or torch.equal(image.flip(-1), crop) for crop in crops)
    assert torch.equal(images_BCHW, before)


def test_offsets_and_flips_are_uniform_and_drawn_per_image() -> None:
    # One bright pixel off the middle says where the crop lay and whether it was flipped.
    num_images = 20_000
    images_BCHW = torch.zeros(num_images, 1, 9, 40, dtype=torch.uint8)
    images_BCHW[:, :, 4, 10] = 1
    places = crop_flip(images_BCHW, generator=seeded()).flatten(1).argmax(dim=1)
    rows, columns = places // 40, places % 40
    # Row 4 moves to 0..8; column 10 to 6..14, and mirrored to 25..33.
    flipped = columns >= 20
    shifts = torch.where(flipped, columns - 25, columns - 6)
    cells = (rows * 9 + shifts) * 2 + flipped.long()
    observed = torch.bincount(cells, minlength=162).double()
    assert len(observed) == 162
    expected = num_images / 162
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    # 161 degrees of freedom: mean 161, standard deviation 18; four of them either way.
    assert 161 - 4 * 18 < chi_square < 161 + 4 * 18
