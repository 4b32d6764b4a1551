"""Standardization: the type that stores numbers, and the mean and deviation that models subtract.

Numbers of any shift and scale are worth the same. A column whose differences float32 would round
away is stored in float64, and only its standardized values become float32. Sums are scaled by a
power of two, so that squares of numbers such as 1e300 or 1e-300 are finite, and no bit changes.

Shapes: N examples, X values of a block, P positions in the last dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = NDArray[np.float64]

# One wrong value would else dominate a step of training.
MOST_DEVIATIONS = 10
# Rows converted to float64 at a time.
ROWS_AT_ONCE = 4096
# The sample of a column's quartiles.
_MIN_SAMPLED_ROWS, _MAX_SAMPLED_ROWS, _SAMPLED_VALUES = 64, 2**14, 2**22
_FENCE = 5.0
# Deviations that float64's rounding of equal numbers reaches, relative to the mean.
_ROUNDING = 1e-15
# Rounding to float32 may move a number by this share of the deviation.
_SMALL = 1e-3
# Of deviations, and of numbers, in float32.
_LEAST, _MOST = 1e-30, 1e30
# Of most examples' largest feature, as strategies square and add up features in float32.
_LEAST_SIZE, _MOST_SIZE = 1e-6, 1e6


def sample_size(places: int) -> int:
    """The rows whose quartiles stand for those of all."""
    return min(_MAX_SAMPLED_ROWS, max(_MIN_SAMPLED_ROWS, _SAMPLED_VALUES // places))


def mean_and_deviation(
    sample_XP: Values, blocks: Callable[[], Iterable[Values]]
) -> tuple[Values, Values]:
    """Means and population deviations of blocks of numbers by position; constant ones get 1.

    Values beyond the outer fences of a sample, five interquartile ranges from its quartiles, count
    as these, so that a few wrong ones do not hide all others.
    """
    low_P, high_P = fences(sample_XP)
    least_P, most_P = np.full_like(low_P, np.inf), np.full_like(low_P, -np.inf)
    for values_XP in blocks():
        least_P = np.minimum(least_P, values_XP.min(axis=0))
        most_P = np.maximum(most_P, values_XP.max(axis=0))
    least_P, most_P = least_P.clip(low_P, high_P), most_P.clip(low_P, high_P)
    _, exponents_P = np.frexp(np.maximum(np.abs(least_P), np.abs(most_P)))

    def scaled() -> Iterable[Values]:
        return (np.ldexp(values_XP.clip(low_P, high_P), -exponents_P) for values_XP in blocks())

    total_P, squares_P, number = np.zeros_like(low_P), np.zeros_like(low_P), 0
    for values_XP in scaled():
        total_P += values_XP.sum(axis=0)
        number += len(values_XP)
    mean_P = total_P / number
    for values_XP in scaled():
        squares_P += np.square(values_XP - mean_P).sum(axis=0)
    std_P = np.sqrt(squares_P / number)
    varies_P = (least_P < most_P) & (std_P > np.abs(mean_P) * _ROUNDING)
    mean_P, std_P = np.ldexp(mean_P, exponents_P), np.ldexp(std_P, exponents_P)
    return mean_P, np.where(varies_P & (std_P > 0), std_P, 1.0)


def fences(sample_XP: Values) -> tuple[Values, Values]:
    """The outer fences of a sample by position, five interquartile ranges from its quartiles."""
    with np.errstate(over="ignore"):
        low_P, high_P = np.quantile(sample_XP / 16, (0.25, 0.75), axis=0) * 16
        width_P = _FENCE * (high_P - low_P)
        # Without a range, as of a column that is mostly zero, there is no fence.
        width_P[width_P == 0] = np.inf
        return low_P - width_P, high_P + width_P


def figures_of(values_NP: Tensor) -> tuple[Tensor, Tensor]:
    """Means and deviations of finite numbers by position, as models see them; P float64 each."""
    step = max(1, len(values_NP) // sample_size(values_NP.shape[1]))

    def blocks() -> Iterable[Values]:
        return (block.double().numpy() for block in torch.split(values_NP, ROWS_AT_ONCE))

    mean_P, std_P = mean_and_deviation(values_NP[::step].double().numpy(), blocks)
    return torch.from_numpy(mean_P), torch.from_numpy(std_P)


def standardized(values_BP: Tensor, mean_P: Tensor, std_P: Tensor) -> Tensor:
    """Numbers minus their mean, over their deviation, cut at 10 deviations; float32.

    Shorter floats are subtracted in float32, others in float64.
    """
    short = values_BP.is_floating_point() and values_BP.dtype != torch.float64
    dtype = torch.float32 if short else torch.float64
    centred_BP = values_BP.to(dtype).sub(mean_P.to(dtype)).div_(std_P.to(dtype))
    return centred_BP.clamp_(-MOST_DEVIATIONS, MOST_DEVIATIONS).to(torch.float32)


def cut(values_BP: Tensor, mean_P: Tensor, std_P: Tensor) -> Tensor:
    """Numbers cut at 10 deviations from their mean, in their own unit; float32."""
    most_P = MOST_DEVIATIONS * std_P
    return values_BP.float().clamp((mean_P - most_P).float(), (mean_P + most_P).float())


def stored(values_NX: Tensor) -> Tensor:
    """Numbers or missing ones (NaN) of any type: float32 where it keeps them apart, else float64.

    It does if rounding moves no usual number of a column by more than a thousandth of the column's
    deviation, and if float32 holds their sizes and differences.
    """
    sample_XP, largest = _sample(values_NX), 0.0
    for block_BX in torch.split(values_NX, ROWS_AT_ONCE):
        size_BX = block_BX.double().abs()
        largest = max(largest, float(size_BX.where(~size_BX.isnan(), 0).max()))
    if largest > _MOST or bool(_losses(sample_XP)[0].any()):
        return values_NX.to(torch.float64)
    return values_NX.to(torch.float32)


def feature_scale(values_NP: Tensor) -> tuple[Tensor, int]:
    """A shift of each column, and an exponent of 2, for `scaled_features`; 0 for usual features.

    With them float32 keeps features apart. Columns share the exponent, as strategies compare
    distances.
    """
    sample_XP = _sample(values_NP)
    sizes_X = np.abs(sample_XP - np.median(sample_XP, axis=0)).max(axis=1)
    usual = float(np.median(sizes_X))
    exponent = 0 if not usual or _LEAST_SIZE <= usual <= _MOST_SIZE else math.frexp(usual)[1]
    lost_P, mean_P, _ = _losses(np.ldexp(sample_XP, -exponent))
    return torch.from_numpy(np.ldexp(np.where(lost_P, mean_P, 0.0), exponent)), exponent


def scaled_features(values_BP: Tensor, scale: tuple[Tensor, int]) -> Tensor:
    """Features by `feature_scale`, of their own type if it is 0, else float64."""
    shift_P, exponent = scale
    if exponent or bool(shift_P.any()):
        return torch.from_numpy(np.ldexp((values_BP.double() - shift_P).numpy(), -exponent))
    return values_BP


def _sample(values_NX: Tensor) -> Values:
    """Evenly spaced rows by position, with a column's largest number in place of missing ones."""
    num_places = max(1, values_NX[:1].numel())
    step = max(1, len(values_NX) // sample_size(num_places))
    sample_XP: Values = values_NX[::step].double().reshape(-1, num_places).numpy()
    missing_XP = np.isnan(sample_XP)
    if missing_XP.any():
        largest_P = np.where(missing_XP, -np.inf, sample_XP).max(axis=0)
        largest_P = np.where(missing_XP.all(axis=0), 0.0, largest_P)
        sample_XP = np.where(missing_XP, largest_P, sample_XP)
    return sample_XP


def _varies(sample_XP: Values) -> NDArray[np.bool_]:
    varies_P: NDArray[np.bool_] = sample_XP.min(axis=0) < sample_XP.max(axis=0)
    return varies_P


def _losses(sample_XP: Values) -> tuple[NDArray[np.bool_], Values, Values]:
    """Whether float32 loses differences of each column, and its mean and deviation."""
    mean_P, std_P = mean_and_deviation(sample_XP, lambda: [sample_XP])
    with np.errstate(over="ignore", invalid="ignore"):
        usual_XP = np.abs(sample_XP - mean_P) <= MOST_DEVIATIONS * std_P
        moved_XP = np.abs(sample_XP - sample_XP.astype(np.float32))
        moved_P = moved_XP.max(axis=0, where=usual_XP, initial=0.0)
        lost_P = _varies(sample_XP) & ((moved_P > _SMALL * std_P) | (std_P < _LEAST))
    return lost_P, mean_P, std_P
