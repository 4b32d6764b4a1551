from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lipt.common.errors import DataError
from lipt.common.targets.reading import read_targets
from lipt.common.targets.values import (
    MultiLabel,
    Regression,
    TargetValues,
    label_values,
    number_values,
)


def read(targets: list[Any], names: list[str] | None = None) -> TargetValues:
    values = read_targets(targets, names, "mine")
    assert values is not None
    return values


@pytest.mark.parametrize(
    "targets", [[0, 3], [True, False], [torch.tensor(1), np.int64(2)], [np.uint8(0)]]
)
def test_whole_numbers_are_classes(targets: list[Any]) -> None:
    assert read_targets(targets, None, "mine") is None


@pytest.mark.parametrize("targets", [[1.0, 2.0, 3.0], torch.tensor([[1.0], [2.0], [3.0]])])
def test_floats_are_numbers_with_their_mean_and_deviation(targets: Any) -> None:
    values = read(list(targets))
    assert values.target == Regression(mean=(2.0,), std=(math.sqrt(2 / 3),))
    assert values.values.tolist() == [[1.0], [2.0], [3.0]]
    assert values.strata_N.tolist() == [0, 1, 2]
    assert values.strata_names == ("up to 1", "1 to 2", "above 2")


def test_a_whole_number_among_floats_is_a_number() -> None:
    assert read([1, 2.5, 3.0]).values.flatten().tolist() == [1.0, 2.5, 3.0]


def test_vectors_of_floats_are_several_numbers_grouped_by_the_first() -> None:
    values = read([np.array([0.0, 7.5]), np.array([4.0, 8.5])], ["height", "weight"])
    assert values.target == Regression(mean=(2.0, 8.0), std=(2.0, 0.5))
    assert values.names == ("height", "weight")
    assert values.strata_names == ("height up to 0", "height above 0")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_vectors_of_zeros_and_ones_are_labels(dtype: torch.dtype) -> None:
    values = read(list(torch.tensor([[1, 0, 1], [0, 0, 0]]).to(dtype)))
    assert values.target == MultiLabel(3)
    assert values.values.dtype == torch.uint8
    assert values.values.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert values.strata_N.tolist() == [0, 3]
    assert values.strata_names == ("0", "1", "2", "none")


def test_lists_of_names_are_labels() -> None:
    values = read([["cat", "dog"], [], ["ant"]])
    assert values.names == ("ant", "cat", "dog")
    assert values.values.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    given = read([["cat"], ["ant", "cat"]], ["dog", "cat", "ant"])
    assert given.values.tolist() == [[0, 1, 0], [0, 1, 1]]


def test_a_label_without_a_place_is_refused() -> None:
    with pytest.raises(DataError, match=r"the label 'cat', which is none of its 1 `classes`"):
        read([["cat"], ["dog"]], ["dog"])


@pytest.mark.parametrize(
    "target",
    [
        {"boxes": [[0, 0, 1, 1]], "labels": [1]},
        torch.zeros(8, 8, dtype=torch.int64),
        None,
        [[1, 2], [3]],
        "a caption",
    ],
)
def test_other_targets_are_refused_with_what_to_do_instead(target: Any) -> None:
    with pytest.raises(
        DataError, match=r"row 1 .*single-label, multi-label or regression.*choose by features"
    ):
        read([1.5, target])


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="from 1 to 2 numbers as targets"):
        read([[0.5], [0.5, 1.5]])


def test_a_number_that_never_differs_is_refused() -> None:
    with pytest.raises(DataError, match="the target 1 is the same number for all 2 examples"):
        number_values(torch.tensor([[0.0, 3.0], [1.0, 3.0]]), None, "mine")


def test_numbers_that_are_not_finite_are_refused_by_their_row() -> None:
    with pytest.raises(DataError, match=r"the target of row 1 is \[nan\], 2 of all"):
        number_values(torch.tensor([[0.0], [math.nan], [math.inf]]), None, "mine")


def test_labels_that_are_neither_0_nor_1_are_refused_by_their_row() -> None:
    with pytest.raises(DataError, match="row 1 has 2 for label 0, which is neither 0 nor 1"):
        label_values(torch.tensor([[0, 1], [2, 1]]), None, "mine")


def test_names_have_to_be_as_many_as_the_columns() -> None:
    with pytest.raises(DataError, match=r"of the shape \(2, 2\) with 1 names"):
        label_values(torch.ones(2, 2), ["one"], "mine")
