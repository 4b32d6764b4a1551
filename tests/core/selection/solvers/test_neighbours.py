"""Neighbours in a plane, and which search finds them."""

from __future__ import annotations

import pytest
import torch

from lipt.core.selection.solvers import neighbours
from lipt.core.selection.solvers.neighbours import (
    SearchName,
    is_approximate,
    nearest_neighbours,
)


def test_neighbors_are_near_in_direction_unless_lengths_shall_count() -> None:
    features = torch.tensor([[1.0, 0.0], [9.0, 0.0], [0.0, 1.0], [0.0, 9.0]])
    assert nearest_neighbours(features, 1).flatten().tolist() == [1, 0, 3, 2]
    # sqrt(2) apart are 0 and 2, 8 are 0 and 1.
    neighbors = nearest_neighbours(features, 1, normalized=False)
    assert neighbors.flatten().tolist() == [2, 0, 0, 2]


def test_a_feature_without_a_direction_is_near_its_like() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    # 1 and 3 are one point, and a length of 1 away from the others.
    assert nearest_neighbours(features, 1).flatten().tolist() == [1, 3, 1, 1]


@pytest.mark.parametrize(
    ("search", "at_most", "above"),
    [("auto", False, True), ("exact", False, False), ("approximate", True, True)],
)
def test_auto_is_exact_up_to_the_limit(search: SearchName, *, at_most: bool, above: bool) -> None:
    assert is_approximate(search, neighbours.MOST_EXACT) == at_most
    assert is_approximate(search, neighbours.MOST_EXACT + 1) == above


@pytest.mark.parametrize("normalized", [True, False])
def test_all_searches_of_few_examples_find_the_same(
    monkeypatch: pytest.MonkeyPatch, *, normalized: bool
) -> None:
    pytest.importorskip("faiss")
    features_ND = torch.randn(90, 7, generator=torch.Generator().manual_seed(0))
    exact = nearest_neighbours(features_ND, 5, normalized=normalized)
    # Two lists at the most, and both are searched.
    found = nearest_neighbours(features_ND, 5, normalized=normalized, search="approximate")
    assert torch.equal(found, exact)
    monkeypatch.setattr(neighbours, "MOST_EXACT", 89)
    assert torch.equal(nearest_neighbours(features_ND, 5, normalized=normalized), exact)
