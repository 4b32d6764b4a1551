"""Input format: shape and normalization of a run's inputs; it travels with every task.

Shapes: B examples, C channels, P positions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lipt.common.data.dataset import Dataset
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ImageSpec,
    InputFormat,
    num_places,
)

_MAX_IMAGES = 2000
_IMAGES_AT_ONCE = 100
# Rows converted to float64 at a time.
_ROWS_AT_ONCE = 4096


def input_format(dataset: Dataset, ids: Tensor, seed: int) -> InputFormat:
    """The input format, with means and deviations over all ids, or over 2,000 sampled images."""
    inputs = dataset.inputs
    if isinstance(inputs, ImageSpec):
        mean, std = normalization(dataset, ids, seed)
        return ImageFormat(*inputs.shape, mean=mean, std=std)
    return ColumnsFormat(
        tuple(
            ColumnFormat(column, *(_figures(dataset, ids, column) if column.standardized else ()))
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
    inputs = dataset.inputs
    if not isinstance(inputs, ImageSpec):
        raise TypeError(f"{inputs} in place of images")
    sums_C = torch.zeros(inputs.channels, dtype=torch.int64)
    squares_C = torch.zeros(inputs.channels, dtype=torch.int64)
    for part in torch.split(sampled, _IMAGES_AT_ONCE):
        pixels_BCHW = dataset.images(part).long()
        sums_C += pixels_BCHW.sum(dim=(0, 2, 3))
        squares_C += pixels_BCHW.square().sum(dim=(0, 2, 3))
    num_pixels = len(sampled) * inputs.height * inputs.width
    means: list[float] = []
    deviations: list[float] = []
    for total, squares in zip(sums_C.tolist(), squares_C.tolist(), strict=True):
        means.append(total / num_pixels / 255)
        # n squares - total^2 is exact in integers, but not in floats.
        variance = (num_pixels * squares - total**2) / num_pixels**2
        deviations.append(variance**0.5 / 255 if variance > 0 else 1.0)
    return tuple(means), tuple(deviations)


def _figures(
    dataset: Dataset, ids: Tensor, column: Column
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means and population deviations by position, summed in one thread; constant ones get 1."""
    places = num_places(column)
    blocks = torch.split(ids.sort().values, _ROWS_AT_ONCE)

    def values_of(block: Tensor) -> np.ndarray:
        stored = dataset.examples(block)
        values = stored if isinstance(stored, Tensor) else stored[column.name]
        flat_XP: np.ndarray = values.to(torch.float64).reshape(-1, places).numpy()
        return flat_XP

    total_P, squares_P, number = np.zeros(places), np.zeros(places), 0
    for block in blocks:
        values_XP = values_of(block)
        total_P += values_XP.sum(axis=0)
        number += len(values_XP)
    mean_P = total_P / number
    for block in blocks:
        squares_P += np.square(values_of(block) - mean_P).sum(axis=0)
    std_P = np.sqrt(squares_P / number)
    # A deviation within rounding error is zero.
    varies_P = std_P > np.abs(mean_P) * 1e-12
    return tuple(mean_P.tolist()), tuple(np.where(varies_P, std_P, 1.0).tolist())
