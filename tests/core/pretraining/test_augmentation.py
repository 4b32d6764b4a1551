import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandAugment
from torchvision.transforms.autoaugment import _apply_op

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod
from lipt.common.errors import DataError
from lipt.core.pretraining.augmentation import (
    NUM_MAGNITUDE_BINS,
    OPERATIONS,
    augment,
    draw_operations,
    randaugment,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images() -> torch.Tensor:
    return torch.randint(256, (20, 3, 8, 8), generator=seeded()).to(torch.uint8)


@pytest.mark.parametrize("method", AugmentationMethod)
@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        (torch.zeros(2, 3, 8, 8), "torch.float32"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), "(3, 8, 8)"),
        (torch.zeros(2, 4, 8, 8, dtype=torch.uint8), "(2, 4, 8, 8)"),
    ],
)
def test_other_images_refused(method: AugmentationMethod, wrong: torch.Tensor, value: str) -> None:
    with pytest.raises(DataError) as raised:
        augment(wrong, AugmentationConfig(method=method), seeded())
    assert value in str(raised.value)
    assert "Convert the images" in str(raised.value)


SHAPES = [(3, 32, 32), (1, 8, 8), (1, 28, 28), (3, 33, 20), (3, 2, 5), (3, 1, 1)]


def kinds_of_images(num_channels: int, height: int, width: int) -> Tensor:
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
def test_operations_levels_and_signs_equal_torchvision_s(size: tuple[int, int]) -> None:
    for magnitude in range(NUM_MAGNITUDE_BINS):
        ours = {
            name: (operation.level(magnitude, *size), operation.signed)
            for name, operation in OPERATIONS.items()
        }
        assert ours == torchvision_space(magnitude, *size)
        assert list(ours) == list(torchvision_space(magnitude, *size))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("magnitude", [0, 9, 30])
def test_operations_as_torchvision(name: str, shape: tuple[int, int, int], magnitude: int) -> None:
    level, signed = torchvision_space(magnitude, *shape[1:])[name]
    images_BCHW = kinds_of_images(*shape)
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


def test_contrast_of_a_large_image_uses_its_exact_mean() -> None:
    # 300 x 300 pixels sum to more than 2**24, where float32 stops counting:
    # one level of 255 in 90,000 pixels of 254 must not move the mean below 254.
    image = torch.full((1, 1, 300, 300), 254, dtype=torch.uint8)
    image[..., 0, 0] = 255
    assert (OPERATIONS["Contrast"].apply(image, -1.0) == 254).all()


def noise(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=seeded(1)).to(torch.uint8)


def one_at_a_time(images_BCHW: Tensor, *, num_ops: int, magnitude: int, seed: int) -> Tensor:
    operations_OB, negative_OB = draw_operations(
        len(images_BCHW), num_ops=num_ops, generator=seeded(seed)
    )
    height, width = images_BCHW.shape[-2:]
    done = []
    for index in range(len(images_BCHW)):
        image = images_BCHW[index : index + 1]
        for which, negative in zip(operations_OB[:, index], negative_OB[:, index], strict=True):
            operation = list(OPERATIONS.values())[which]
            level = operation.level(magnitude, height, width)
            image = operation.apply(image, -level if negative and operation.signed else level)
        done.append(image)
    return torch.cat(done)


@pytest.mark.parametrize("num_ops", [0, 1, 2, 3, 10])
@pytest.mark.parametrize("shape", [(97, 3, 16, 12), (64, 1, 8, 8), (1, 3, 8, 8)], ids=str)
def test_groups_equal_single_images(num_ops: int, shape: tuple[int, int, int, int]) -> None:
    images_BCHW = noise(*shape)
    before = images_BCHW.clone()
    got = randaugment(images_BCHW, num_ops=num_ops, magnitude=9, generator=seeded(5))
    assert torch.equal(got, one_at_a_time(images_BCHW, num_ops=num_ops, magnitude=9, seed=5))
    assert torch.equal(images_BCHW, before)
