"""RandAugment over a batch: every image draws its own operations, groups run together.

torchvision gives all images of a batch the same draw, and one image at a time
costs a dozen small kernels per image. Here the images that drew the same
operation with the same sign are sorted next to each other and handled at once.

Shapes: B images, O operations per image, C channels, H height, W width.
Source: Cubuk et al. 2020, "RandAugment" (arXiv:1909.13719).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipt.core.learner.augmentation.operations import OPERATIONS


def draw_operations(
    num_images: int, *, num_ops: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Each image's operations, uniform and independent, and the sign of each.

    Args:
        num_images: B.
        num_ops: operations per image, applied one after another.
        generator: a CPU generator, so that the draws are the same on every device.

    Returns:
        operations_OB (int64), positions in `OPERATIONS`, and negative_OB (bool);
        the sign of an operation that has none is drawn and not used.
    """
    shape = (num_ops, num_images)
    operations_OB = torch.randint(len(OPERATIONS), shape, generator=generator)
    negative_OB = torch.randint(2, shape, generator=generator).to(torch.bool)
    return operations_OB, negative_OB


def randaugment(
    images_BCHW: Tensor, *, num_ops: int, magnitude: int, generator: torch.Generator
) -> Tensor:
    """Apply `num_ops` operations to every image, each image its own.

    Args:
        images_BCHW: uint8 with 1 or 3 channels, on any device. Not modified.
        num_ops: operations per image, one after another; 0 leaves the images as they are.
        magnitude: bin of the strength, in 0..30; the paper's is 9.
        generator: a CPU generator.

    Returns:
        New images of the same shape, on the same device (the given ones for `num_ops` 0).
    """
    if num_ops == 0:
        return images_BCHW
    draws = draw_operations(len(images_BCHW), num_ops=num_ops, generator=generator)
    signed = torch.tensor([operation.signed for operation in OPERATIONS.values()])
    # The images stay sorted by their last group until the end; place_B says which is which.
    # Two buffers in turn: a new one per round would cost more (in page faults) than the copy.
    place_B = torch.arange(len(images_BCHW))
    sorted_BCHW, spare_BCHW = torch.empty_like(images_BCHW), torch.empty_like(images_BCHW)
    for operations_B, negative_B in zip(*draws, strict=True):
        group_B = 2 * operations_B + (negative_B & signed[operations_B])
        order_B = group_B[place_B].argsort(stable=True)
        place_B = place_B[order_B]
        torch.index_select(images_BCHW, 0, order_B.to(images_BCHW.device), out=sorted_BCHW)
        counts = torch.bincount(group_B, minlength=2 * len(OPERATIONS)).tolist()
        _apply_in_place(torch.split(sorted_BCHW, counts), magnitude)
        images_BCHW, sorted_BCHW, spare_BCHW = sorted_BCHW, spare_BCHW, sorted_BCHW
    return torch.index_select(
        images_BCHW, 0, place_B.argsort().to(images_BCHW.device), out=sorted_BCHW
    )


def _apply_in_place(groups: Sequence[Tensor], magnitude: int) -> None:
    """Run every operation on its two groups: those with the positive and the negative sign."""
    height, width = groups[0].shape[-2:]
    pairs = zip(groups[::2], groups[1::2], strict=True)
    for operation, pair in zip(OPERATIONS.values(), pairs, strict=True):
        level = operation.level(magnitude, height, width)
        for group_BCHW, sign in zip(pair, (1.0, -1.0), strict=True):
            if len(group_BCHW) > 0:
                group_BCHW.copy_(operation.apply(group_BCHW, sign * level))
