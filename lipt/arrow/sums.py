"""Exact sums: what a ridge head needs of examples, the same to the bit in any order.

A sum of floats depends on its order, and nobody knows in which order partitions come back. So
numbers are cut into digits of 12 bits: products of two digits, and sums of these, are whole
numbers, which float64 multiplies and int64 adds without rounding, up to 2^36 rows. No bit of a
float32 feature is lost. The sums are Z'Z of Z = [features, 1, one-hot label].

Shapes: B rows of a batch, D features, C classes, P = D + 1 + C columns of Z.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional

from lipt.arrow.columns import matrix_of, whole_numbers
from lipt.common.errors import DataError

_BITS = 12
_COUNTS = "counts"


@dataclass(frozen=True)
class ExactSums:
    """Sums over some examples.

    num_examples: how many.
    num_classes: C.
    digits: P x P int64 by the power of 2^12 that they count in; none that is all 0.
    """

    num_examples: int
    num_classes: int
    digits: Mapping[int, Tensor]

    def to_bytes(self) -> bytes:
        """A safetensors file; equal sums give equal bytes."""
        counts = torch.tensor([self.num_examples, self.num_classes])
        powers = {str(power): self.digits[power] for power in sorted(self.digits)}
        data: bytes = save({_COUNTS: counts, **powers})
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> ExactSums:
        """What `to_bytes` gave."""
        tensors = load(data)
        num_examples, num_classes = tensors.pop(_COUNTS).tolist()
        return cls(num_examples, num_classes, {int(name): tensors[name] for name in tensors})


@dataclass(frozen=True)
class RidgeHead:
    """A linear head: outputs are features @ weights_DC + bias_C, about 1 for the class. Float64."""

    weights_DC: Tensor
    bias_C: Tensor


def accumulate(
    batch: Any,
    num_classes: int,
    *,
    features: str = "features",
    label: str = "label",
    class_counts: Sequence[int] | None = None,
) -> ExactSums:
    """The sums over one record batch.

    Args:
        batch: with a column of lists of D numbers, and one of labels.
        num_classes: C.
        features: the name of the one; taken as float32.
        label: the name of the other, numbers in 0..C-1.
        class_counts: how many examples each class has in ALL of the data, which gives every class
            the same say, as the proxy has it; None counts all examples alike.

    Raises:
        DataError: a column is missing or of another type, a label is no class's number, or a
            feature is not finite in float32.
    """
    features_BD, labels_B = matrix_of(batch, features).float(), whole_numbers(batch, label)
    if bool(((labels_B < 0) | (labels_B >= num_classes)).any()):
        raise DataError(
            f"labels are {int(labels_B.min())} to {int(labels_B.max())}, outside of "
            f"0..{num_classes - 1}. Number the classes from 0."
        )
    if not bool(features_BD.isfinite().all()):
        raise DataError(f"some of {features!r} are not finite in float32. Scale or repair them.")
    ones_B1, one_hot_BC = torch.ones(len(labels_B), 1), functional.one_hot(labels_B, num_classes)
    rows_BP = torch.cat([features_BD, ones_B1, one_hot_BC], dim=1).double()
    if class_counts is not None:
        rows_BP *= _say(class_counts)[labels_B].sqrt()[:, None]
    # Each is rounded once, by itself: the same in any batch.
    parts = dict(_digits(rows_BP.float().double()))
    sums: dict[int, Tensor] = {}
    for (left, left_BP), (right, right_BP) in combinations_with_replacement(parts.items(), 2):
        product_PP = (left_BP.T @ right_BP).long()
        # The other way round it is the same, transposed.
        both_PP = product_PP if left == right else product_PP + product_PP.T
        power = left + right
        sums[power] = sums[power] + both_PP if power in sums else both_PP
    return ExactSums(len(labels_B), num_classes, _without_zeros(sums))


def merge(one: ExactSums, other: ExactSums) -> ExactSums:
    """The sums over the examples of both; of no order.

    Raises:
        DataError: they are of other numbers of features or classes.
    """
    shapes = {tuple(part.shape) for sums in (one, other) for part in sums.digits.values()}
    if one.num_classes != other.num_classes or len(shapes) > 1:
        raise DataError(
            f"sums of {one.num_classes} and {other.num_classes} classes, of shapes "
            f"{sorted(shapes)}, are not of one data set. Make all of them alike."
        )
    sums = dict(one.digits)
    for power, part in other.digits.items():
        sums[power] = sums[power] + part if power in sums else part
    return ExactSums(one.num_examples + other.num_examples, one.num_classes, _without_zeros(sums))


def solve(sums: ExactSums, *, penalty: float) -> RidgeHead:
    """The ridge head on features that are centred and scaled, as the proxy fits it.

    Args:
        sums: over all of the data.
        penalty: lambda of the mean example, above 0.

    Raises:
        DataError: there are no examples, or the penalty is not above 0.
    """
    if not sums.num_examples or not penalty > 0:
        raise DataError(
            f"a ridge head needs examples and a penalty above 0; these are {sums.num_examples} "
            f"and {penalty}."
        )
    total, means_P, centred_PP = _centred(sums)
    num_features = centred_PP.shape[0] - 1 - sums.num_classes
    inputs, outputs = slice(num_features), slice(num_features + 1, None)
    variance_D = centred_PP.diagonal()[inputs] / total
    # As the proxy has it: what varies by a millionth of its mean is rounding.
    varies_D = variance_D > 1e-12 * means_P[inputs].square() + 1e-30
    inverse_D = torch.where(varies_D, variance_D.clamp(min=1e-30).rsqrt(), 0.0)
    gram_DD = centred_PP[inputs, inputs] * inverse_D * inverse_D[:, None]
    gram_DD.diagonal().add_(penalty * sums.num_examples)
    scaled_DC = centred_PP[inputs, outputs] * inverse_D[:, None]
    weights_DC = torch.linalg.solve(gram_DD, scaled_DC) * inverse_D[:, None]
    return RidgeHead(weights_DC, means_P[outputs] - means_P[inputs] @ weights_DC)


def _centred(sums: ExactSums) -> tuple[float, Tensor, Tensor]:
    """The sum of weights, Z's weighted mean, and Z'Z about it; rounded once, at the end."""
    lowest = min(sums.digits)
    exact_PP: Any = sum(
        part.numpy().astype(object) * (1 << _BITS * (power - lowest))
        for power, part in sums.digits.items()
    )
    # The column of ones, times the roots of weights: its products are sums of weighted rows.
    own = exact_PP.shape[0] - 1 - sums.num_classes
    total, sums_P = exact_PP[own, own], exact_PP[own]
    about_mean = exact_PP * total - np.outer(sums_P, sums_P)
    unit = 2.0 ** (_BITS * lowest)
    centred_PP = torch.from_numpy((about_mean / total).astype(np.float64)) * unit
    return total * unit, torch.from_numpy((sums_P / total).astype(np.float64)), centred_PP


def _say(class_counts: Sequence[int]) -> Tensor:
    """What an example of each class counts, so that classes have the same say; C float64."""
    counts_C = torch.tensor(class_counts, dtype=torch.float64)
    present = int((counts_C > 0).sum())
    return counts_C.sum() / (present * counts_C.clamp(min=1))


def _digits(values_BP: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The values' digits to the base 2^12, by their powers, signed; a value's own, whoever else."""
    left_BP = values_BP
    while (largest := float(left_BP.abs().max()) if left_BP.numel() else 0.0) > 0:
        power = (math.frexp(largest)[1] - 1) // _BITS
        unit = 2.0 ** (_BITS * power)
        digit_BP = (left_BP / unit).trunc()
        yield power, digit_BP
        left_BP = left_BP - digit_BP * unit


def _without_zeros(sums: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Only what counts, in order, so that equal sums are equal."""
    return {power: sums[power] for power in sorted(sums) if bool(sums[power].any())}
