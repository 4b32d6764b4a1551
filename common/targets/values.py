"""Target values: a data set's targets where they are no single class, checked and grouped.

Shapes: N examples, C labels, T numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.targets.multi_label import MultiLabel
from lipt.common.targets.regression import Regression
from lipt.common.targets.strata import (
    label_strata_names,
    quantile_edges,
    quantile_names,
    quantile_strata,
    rarest_label_strata,
)

# What is told of a target where that is no single class.
OtherTarget = Annotated[MultiLabel | Regression, Field(discriminator="kind")]


@dataclass(frozen=True)
class TargetValues:
    """What a model is to give of N examples.

    Attributes:
        target: their kind.
        values: uint8 N x C for labels, float32 N x T for numbers, on the CPU.
        names: of the labels or the numbers.
        strata_N: int64, what examples are grouped by where others are by class.
        strata_names: a name for each stratum.
    """

    target: OtherTarget
    values: Tensor
    names: tuple[str, ...]
    strata_N: Tensor
    strata_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)


def label_values(values_NC: Tensor, names: Sequence[str] | None, source: str) -> TargetValues:
    """Labels of N examples.

    Args:
        values_NC: 0 and 1 of any real type.
        names: of the labels; numbers where None.
        source: for messages.

    Raises:
        DataError: a value is something else, or there are no labels.
    """
    num_labels = _require_matrix(values_NC, names, source, "labels")
    bad_NC = (values_NC != 0) & (values_NC != 1)
    if bool(bad_NC.any()):
        row, label = bad_NC.nonzero()[0].tolist()
        raise DataError(
            f"{source}: row {row} has {values_NC[row, label].item()} for label {label}, which is "
            "neither 0 nor 1. Give 1 for every label that an example has and 0 for the others; "
            "numbers to be told (regression) are given as floats."
        )
    labels = tuple(map(str, range(num_labels))) if names is None else tuple(names)
    values = values_NC.to("cpu", torch.uint8).contiguous()
    strata_N = rarest_label_strata(values)
    names_of_strata = label_strata_names(labels)
    return TargetValues(MultiLabel(num_labels), values, labels, strata_N, names_of_strata)


def number_values(values_NT: Tensor, names: Sequence[str] | None, source: str) -> TargetValues:
    """Numbers of N examples.

    Args:
        values_NT: any real type.
        names: of the numbers; counted where None.
        source: for messages.

    Raises:
        DataError: a number is not finite, or is the same for all examples.
    """
    num_outputs = _require_matrix(values_NT, names, source, "numbers")
    values = values_NT.to("cpu", torch.float32).contiguous()
    bad_N = ~values.isfinite().all(dim=1)
    if bool(bad_N.any()):
        row = int(bad_N.nonzero()[0])
        raise DataError(
            f"{source}: the target of row {row} is {values_NT[row].tolist()}, {int(bad_N.sum())} "
            "of all are not finite in float32. Remove these rows, or give their numbers."
        )
    numbers = tuple(map(str, range(num_outputs))) if names is None else tuple(names)
    means, deviations = zip(*map(_mean_and_deviation, values.T), strict=True)
    for name, deviation in zip(numbers, deviations, strict=True):
        if not deviation:
            raise DataError(
                f"{source}: the target {name} is the same number for all {len(values)} examples, "
                "so there is nothing to learn. Leave it out, or open the data that has others."
            )
    edges_Q = quantile_edges(values[:, 0])
    return TargetValues(
        Regression(means, deviations),
        values,
        numbers,
        quantile_strata(values[:, 0], edges_Q),
        quantile_names(edges_Q, "" if names is None else numbers[0]),
    )


def _require_matrix(values: Tensor, names: Sequence[str] | None, source: str, what: str) -> int:
    """How many columns there are."""
    columns = values.shape[1] if values.ndim == 2 else 0
    if not len(values) or not columns or (names is not None and len(names) != columns):
        named = "" if names is None else f" with {len(names)} names"
        raise DataError(
            f"{source}: the targets are {what} of the shape {tuple(values.shape)}{named}; one row "
            "per example and one column per name is needed. Give a matrix of them."
        )
    return columns


def _mean_and_deviation(column_N: Tensor) -> tuple[float, float]:
    """The population's, by exact sums: the same whatever the order or the machine."""
    numbers = column_N.double().tolist()
    mean = math.fsum(numbers) / len(numbers)
    if min(numbers) == max(numbers):
        return mean, 0.0
    variance = math.fsum((number - mean) ** 2 for number in numbers) / len(numbers)
    return mean, math.sqrt(variance)
