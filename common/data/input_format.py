"""Input format: shape and normalization of a run's inputs; it travels with every task.

Shapes: B examples, C channels, P positions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lipt.common.data.dataset import Dataset
from lipt.common.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ImageFormat,
    ImageSpec,
    InputFormat,
    num_places,
)

_MAX_IMAGES = 2000
_IMAGES_AT_ONCE = 100
# Rows converted to float64 at a time.
_ROWS_AT_ONCE = 4096
# The sample of a column's quartiles.
_MIN_SAMPLED_ROWS, _MAX_SAMPLED_ROWS, _SAMPLED_VALUES = 64, 2**14, 2**22
_FENCE = 5.0


def input_format(dataset: Dataset, ids: Tensor, seed: int) -> InputFormat:
    """The input format, with means and deviations over all ids, or over 2,000 sampled images."""
    inputs = dataset.inputs
    if isinstance(inputs, ImageSpec):
        mean, std = normalization(dataset, ids, seed)
        return ImageFormat(*inputs.shape, mean=mean, std=std)
    return ColumnsFormat(
        tuple(
            ColumnFormat(column, *_figures(dataset, ids, column, seed))
            if column.standardized
            else ColumnFormat(column)
            for column in inputs.columns
        )
    )


def normalization(
    dataset: Dataset, ids: Tensor, seed: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation per channel, of pixels scaled to [0, 1].

    Integer sums do not depend on order or threads. A constant channel gets deviation 1.
    """
    generator = torch.Generator().manual_seed(seed)
    sampled = ids[torch.randperm(len(ids), generator=generator)[:_MAX_IMAGES]].sort().values
    sums_2C, num_pixels = torch.zeros(2, 1, dtype=torch.int64), 0
    for part in torch.split(sampled, _IMAGES_AT_ONCE):
        pixels_BCHW = dataset.images(part).long()
        powers_2BCHW = torch.stack([pixels_BCHW, pixels_BCHW.square()])
        sums_2C = sums_2C + powers_2BCHW.sum(dim=(1, 3, 4))
        num_pixels += pixels_BCHW[:, 0].numel()
    means: list[float] = []
    deviations: list[float] = []
    for total, squares in sums_2C.T.tolist():
        means.append(total / num_pixels / 255)
        # n squares - total^2 is exact in integers, but not in floats.
        variance = (num_pixels * squares - total**2) / num_pixels**2
        deviations.append(variance**0.5 / 255 if variance > 0 else 1.0)
    return tuple(means), tuple(deviations)


def _figures(
    dataset: Dataset, ids: Tensor, column: Column, seed: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means and population deviations by position, summed in one thread; constant ones get 1.

    Values beyond the outer fences of a sample, five interquartile ranges from its quartiles, count
    as these, so that a few wrong ones do not hide all others.
    """
    places = num_places(column)
    blocks = torch.split(ids.sort().values, _ROWS_AT_ONCE)

    def values_of(block: Tensor) -> np.ndarray:
        stored = dataset.examples(block)
        values = stored if isinstance(stored, Tensor) else stored[column.name]
        flat_XP: np.ndarray = values.to(torch.float64).reshape(-1, places).numpy()
        return flat_XP

    generator = torch.Generator().manual_seed(seed)
    size = min(_MAX_SAMPLED_ROWS, max(_MIN_SAMPLED_ROWS, _SAMPLED_VALUES // places))
    sampled = ids[torch.randperm(len(ids), generator=generator)[:size]].sort().values
    low_P, high_P = np.quantile(values_of(sampled), (0.25, 0.75), axis=0)
    width_P = _FENCE * (high_P - low_P)
    # Without a range, as of a column that is mostly zero, there is no fence.
    width_P[width_P == 0] = np.inf
    low_P, high_P = low_P - width_P, high_P + width_P

    total_P, squares_P, number = np.zeros(places), np.zeros(places), 0
    for block in blocks:
        values_XP = values_of(block).clip(low_P, high_P)
        total_P += values_XP.sum(axis=0)
        number += len(values_XP)
    mean_P = total_P / number
    for block in blocks:
        squares_P += np.square(values_of(block).clip(low_P, high_P) - mean_P).sum(axis=0)
    std_P = np.sqrt(squares_P / number)
    # A deviation within rounding error is zero.
    varies_P = std_P > np.abs(mean_P) * 1e-12
    return tuple(mean_P.tolist()), tuple(np.where(varies_P, std_P, 1.0).tolist())
