from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandAugment
from torchvision.transforms.autoaugment import _apply_op

from lipt.core.learner.augmentation import NUM_MAGNITUDE_BINS, OPERATIONS

SHAPES = [(3, 32, 32), (1, 8, 8), (1, 28, 28), (3, 33, 20), (3, 2, 5), (3, 1, 1)]


def images(num_channels: int, height: int, width: int) -> Tensor:
    """Noise, smooth ramps, two values, and constants: 12 images."""
    generator = torch.Generator().manual_seed(0)
    shape = (4, num_channels, height, width)
    noise = torch.randint(256, shape, generator=generator)
    ramps = torch.randint(64, shape, generator=generator) + torch.arange(width) * 150 // width
    two_values = torch.randint(2, (1, *shape[1:]), generator=generator) * 255
    constants = torch.tensor([0, 7, 255])[:, None, None, None].expand(3, *shape[1:])
    return torch.cat([noise, ramps, two_values, constants]).to(torch.uint8)


def torchvision_space(magnitude: int, height: int, width: int) -> dict[str, tuple[float, bool]]:
    space = RandAugment(magnitude=magnitude)._augmentation_space(31, (height, width))
    return {
        name: (float(levels[magnitude]) if levels.ndim else 0.0, signed)
        for name, (levels, signed) in space.items()
    }


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (37, 224)])
def test_operations_levels_and_signs_are_those_of_torchvision(size: tuple[int, int]) -> None:
    for magnitude in range(NUM_MAGNITUDE_BINS):
        ours = {
            name: (operation.level(magnitude, *size), operation.signed)
            for name, operation in OPERATIONS.items()
        }
        assert ours == torchvision_space(magnitude, *size)
        assert list(ours) == list(torchvision_space(magnitude, *size))


def test_there_are_the_papers_fourteen_operations() -> None:
    assert len(OPERATIONS) == 14


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("magnitude", [0, 9, 30])
def test_operation_equals_torchvision_applied_to_each_image(
    name: str, shape: tuple[int, int, int], magnitude: int
) -> None:
    level, signed = torchvision_space(magnitude, *shape[1:])[name]
    images_BCHW = images(*shape)
    before = images_BCHW.clone()
    for sign in (1.0, -1.0) if signed else (1.0,):
        expected = torch.stack(
            [
                _apply_op(image, name, sign * level, InterpolationMode.NEAREST, fill=None)
                for image in images_BCHW
            ]
        )
        got = OPERATIONS[name].apply(images_BCHW, sign * level)
        assert got.dtype == torch.uint8
        assert torch.equal(got, expected), (name, sign * level)
    assert torch.equal(images_BCHW, before)


def test_translation_moves_whole_pixels_and_fills_with_black() -> None:
    image = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8).view(1, 1, 2, 3)
    right = OPERATIONS["TranslateX"].apply(image, 1.9)
    up = OPERATIONS["TranslateY"].apply(image, -1.0)
    assert right.flatten().tolist() == [0, 1, 2, 0, 4, 5]
    assert up.flatten().tolist() == [4, 5, 6, 0, 0, 0]


def test_translation_beyond_the_image_leaves_black() -> None:
    image = torch.full((1, 3, 4, 4), 9, dtype=torch.uint8)
    assert OPERATIONS["TranslateX"].apply(image, 5.0).sum() == 0
    assert OPERATIONS["TranslateX"].apply(image, -5.0).sum() == 0


def test_contrast_of_a_large_image_uses_its_exact_mean() -> None:
    # 300 x 300 pixels sum to more than 2**24, where float32 stops counting:
    # one level of 255 in 90,000 pixels of 254 must not move the mean below 254.
    image = torch.full((1, 1, 300, 300), 254, dtype=torch.uint8)
    image[..., 0, 0] = 255
    assert (OPERATIONS["Contrast"].apply(image, -1.0) == 254).all()


def test_equalize_is_the_hand_computed_table() -> None:
    # 510 pixels: 255 of value 10, 254 of value 20, one of value 30.
    # step = (510 - 1) // 255 = 1; tables: 10 -> 0, 20 -> 255, 30 -> min(509, 255).
    values = torch.tensor([10] * 255 + [20] * 254 + [30], dtype=torch.uint8)
    equalized = OPERATIONS["Equalize"].apply(values.view(1, 1, 17, 30), 0.0)
    assert equalized.flatten().tolist() == [0] * 255 + [255] * 255


def test_autocontrast_stretches_each_channel_by_itself() -> None:
    image = torch.tensor([[10, 20, 30], [0, 128, 255]], dtype=torch.uint8).view(1, 2, 1, 3)
    stretched = OPERATIONS["AutoContrast"].apply(image, 0.0)
    assert stretched.view(2, 3).tolist() == [[0, 127, 255], [0, 128, 255]]
