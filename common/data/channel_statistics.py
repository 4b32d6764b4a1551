"""Channel statistics: each channel's mean and deviation, by which a run's images are normalized.

They travel with the task, so that all peers normalize alike.

Shapes: B examples, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.data.dataset import Dataset
from lipt.common.inputs.specs import ImageSpec

_MAX_EXAMPLES = 2000
_BATCH_SIZE = 100


def normalization(
    dataset: Dataset, ids: Tensor, seed: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, of pixels scaled to [0, 1].

    Sums are kept in integers, so the result does not depend on order or threads.

    Args:
        dataset: where the images are.
        ids: row numbers to sample from, int64, at least one.
        seed: decides which rows are sampled where there are more than 2,000.

    Returns:
        Means and population standard deviations; a channel that never varies gets 1,
        so that dividing by it is harmless.
    """
    generator = torch.Generator().manual_seed(seed)
    sampled = ids[torch.randperm(len(ids), generator=generator)[:_MAX_EXAMPLES]].sort().values
    inputs = dataset.inputs
    if not isinstance(inputs, ImageSpec):
        raise TypeError(f"{inputs} in place of images")
    channels, height, width = inputs.shape
    sums_C = torch.zeros(channels, dtype=torch.int64)
    squares_C = torch.zeros(channels, dtype=torch.int64)
    for start in range(0, len(sampled), _BATCH_SIZE):
        pixels_BCHW = dataset.images(sampled[start : start + _BATCH_SIZE]).long()
        sums_C += pixels_BCHW.sum(dim=(0, 2, 3))
        squares_C += pixels_BCHW.square().sum(dim=(0, 2, 3))
    num_pixels = len(sampled) * height * width
    means: list[float] = []
    deviations: list[float] = []
    for total, squares in zip(sums_C.tolist(), squares_C.tolist(), strict=True):
        means.append(total / num_pixels / 255)
        # n squares - total^2 is exact in Python's integers; a difference of floats is not.
        variance = (num_pixels * squares - total**2) / num_pixels**2
        deviations.append(variance**0.5 / 255 if variance > 0 else 1.0)
    return tuple(means), tuple(deviations)
