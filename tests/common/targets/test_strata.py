from __future__ import annotations

import pytest
import torch

from lipt.common.targets.values import (
    quantile_edges,
    quantile_names,
    quantile_strata,
    rarest_label_strata,
)


def test_ten_bins_of_a_hundred_different_numbers_have_ten_each() -> None:
    values = torch.randperm(100, generator=torch.Generator().manual_seed(0)).double()
    edges = quantile_edges(values)
    assert edges.tolist() == [9, 19, 29, 39, 49, 59, 69, 79, 89]
    assert quantile_strata(values, edges).bincount().tolist() == [10] * 10


def test_equal_numbers_are_in_the_lower_bin() -> None:
    values = torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0, 4.0])
    edges = quantile_edges(values, num_bins=2)
    assert edges.tolist() == [2.0]
    assert quantile_strata(values, edges).tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0] * 95 + [1.0] * 5, [95, 5]),
        ([0.0] * 5 + [1.0] * 95, [5, 95]),
        ([1.0, 2.0], [1, 1]),
        ([1.0, 2.0, 3.0], [1, 1, 1]),
    ],
)
def test_no_bin_is_empty_and_there_are_two_at_least(
    values: list[float], expected: list[int]
) -> None:
    values_N = torch.tensor(values)
    assert quantile_strata(values_N, quantile_edges(values_N)).bincount().tolist() == expected


def test_bins_are_named_by_their_edges() -> None:
    edges = torch.tensor([60.0, 80.5], dtype=torch.float64)
    assert quantile_names(edges) == ("up to 60", "60 to 80.5", "above 80.5")
    assert quantile_names(edges[:1], "price") == ("price up to 60", "price above 60")


def test_the_stratum_of_labels_is_the_rarest_one_or_none() -> None:
    # Label 0 is had three times, 1 and 2 twice.
    targets = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 1, 1], [0, 0, 0]])
    assert rarest_label_strata(targets).tolist() == [1, 0, 2, 1, 3]
