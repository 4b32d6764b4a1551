from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.core.learner.augmentation import OPERATIONS, draw_operations, randaugment


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=seeded(1)).to(torch.uint8)


def one_at_a_time(images_BCHW: Tensor, *, num_ops: int, magnitude: int, seed: int) -> Tensor:
    """The slow oracle: the same draws, image by image, operation by operation."""
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
def test_grouped_execution_equals_one_image_at_a_time(
    num_ops: int, shape: tuple[int, int, int, int]
) -> None:
    images_BCHW = noise(*shape)
    before = images_BCHW.clone()
    got = randaugment(images_BCHW, num_ops=num_ops, magnitude=9, generator=seeded(5))
    assert torch.equal(got, one_at_a_time(images_BCHW, num_ops=num_ops, magnitude=9, seed=5))
    assert torch.equal(images_BCHW, before)


def test_non_contiguous_images_are_augmented_alike() -> None:
    images_BCHW = noise(40, 3, 10, 10)
    channels_last = images_BCHW.contiguous(memory_format=torch.channels_last)
    expected = randaugment(images_BCHW, num_ops=2, magnitude=9, generator=seeded())
    assert torch.equal(
        randaugment(channels_last, num_ops=2, magnitude=9, generator=seeded()), expected
    )


def test_equal_images_in_one_batch_come_out_different() -> None:
    # Values in 30..219: AutoContrast has something to stretch, and Solarize to invert.
    same = (noise(1, 3, 32, 32) // 4 * 3 + 30).expand(256, -1, -1, -1)
    augmented = randaugment(same, num_ops=1, magnitude=9, generator=seeded())
    # 14 operations, 9 of them with two signs: at most 23 results, and with 256
    # draws the chance that any of them is missing is below 23 * (27/28)**256 < 0.3%.
    assert len({tuple(image.flatten().tolist()) for image in augmented}) == 23


def test_one_seed_gives_the_same_images() -> None:
    images_BCHW = noise(30, 3, 8, 8)
    first, again, other = (
        randaugment(images_BCHW, num_ops=2, magnitude=9, generator=seeded(seed))
        for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_global_generator_is_not_used() -> None:
    state = torch.get_rng_state()
    randaugment(noise(8, 3, 8, 8), num_ops=2, magnitude=9, generator=seeded())
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_are_uniform_and_independent() -> None:
    num_images = 20_000
    operations_OB, negative_OB = draw_operations(num_images, num_ops=2, generator=seeded())
    num_operations = len(OPERATIONS)
    # Every pair of (first, second) operation and sign of the first: 14 * 14 * 2 cells.
    cells = (operations_OB[0] * num_operations + operations_OB[1]) * 2 + negative_OB[0].long()
    observed = torch.bincount(cells, minlength=2 * num_operations**2).double()
    expected = num_images / len(observed)
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    # 391 degrees of freedom: mean 391, standard deviation 28; four of them either way.
    assert 391 - 4 * 28 < chi_square < 391 + 4 * 28
