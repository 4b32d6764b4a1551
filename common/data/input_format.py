"""Input format: shape, statistics and normalization of examples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lipt.common.data.dataset import Dataset
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.columns import Column
from lipt.common.inputs.specs import ColumnFormat, ColumnsFormat, ImageSpec, InputFormat, num_places
from lipt.common.inputs.stored import Stored

# Channel statistics: each channel's mean and deviation, by which a run's images are normalized.
#
# They travel with the task, so that all peers normalize alike.
#
# Shapes: B examples, C channels.

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


# Input format: what a run's models are given of its data, with figures of its training examples.
#
# Images are normalized per channel, standardized columns by place in their last dimension.
#
# Shapes: N examples, P places.

# Rows whose values are float64 at a time.
_ROWS_AT_ONCE = 4096


def input_format(dataset: Dataset, ids: Tensor, seed: int) -> InputFormat:
    """The format of a data set's inputs, with figures of some of its examples.

    Args:
        dataset: where the examples are.
        ids: row numbers of those that figures are of, int64, at least one.
        seed: decides which images are looked at where there are many; columns are as a whole.
    """
    inputs = dataset.inputs
    if isinstance(inputs, ImageSpec):
        mean, std = normalization(dataset, ids, seed)
        return ImageFormat(*inputs.shape, mean=mean, std=std)
    formats = []
    for column in inputs.columns:
        if column.standardized:
            formats.append(ColumnFormat(column, *_figures(dataset, ids, column)))
        else:
            formats.append(ColumnFormat(column))
    return ColumnsFormat(tuple(formats))


def _figures(
    dataset: Dataset, ids: Tensor, column: Column
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means and population deviations by place; a place that never varies gets 1.

    NumPy sums in one thread, so that their number does not matter.
    """
    places = num_places(column)
    total_P, squares_P, number = np.zeros(places), np.zeros(places), 0
    blocks = torch.split(ids.sort().values, _ROWS_AT_ONCE)
    for block in blocks:
        values_XP = _values(dataset.examples(block), column)
        total_P += values_XP.sum(axis=0)
        number += len(values_XP)
    mean_P = total_P / number
    for block in blocks:
        squares_P += np.square(_values(dataset.examples(block), column) - mean_P).sum(axis=0)
    std_P = np.sqrt(squares_P / number)
    # A difference that is nothing but rounding is none.
    varies_P = std_P > np.abs(mean_P) * 1e-12
    return tuple(mean_P.tolist()), tuple(np.where(varies_P, std_P, 1.0).tolist())


def _values(stored: Stored, column: Column) -> np.ndarray:
    values = stored if isinstance(stored, Tensor) else stored[column.name]
    flat: np.ndarray = values.to(torch.float64).reshape(-1, num_places(column)).numpy()
    return flat
