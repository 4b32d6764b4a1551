"""Neighbours in a plane, and which search finds them."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

import pytest
import torch
from torch import Tensor

from lipt.common.errors import MissingExtraError
from lipt.core.selection.solvers import neighbours
from lipt.core.selection.solvers import neighbours as module
from lipt.core.selection.solvers.neighbours import (
    Search,
    approximate_neighbours,
    is_approximate,
    nearest,
    nearest_neighbours,
)


def test_neighbors_are_near_in_direction_unless_lengths_shall_count() -> None:
    features = torch.tensor([[1.0, 0.0], [9.0, 0.0], [0.0, 1.0], [0.0, 9.0]])
    assert nearest_neighbours(features, 1).flatten().tolist() == [1, 0, 3, 2]
    # sqrt(2) apart are 0 and 2, 8 are 0 and 1.
    neighbors = nearest_neighbours(features, 1, normalized=False)
    assert neighbors.flatten().tolist() == [2, 0, 0, 2]


@pytest.mark.parametrize(
    ("search", "at_most", "above"),
    [("auto", False, True), ("exact", False, False), ("approximate", True, True)],
)
def test_auto_is_exact_up_to_the_limit(search: Search, *, at_most: bool, above: bool) -> None:
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


def clustered(num_examples: int, num_features: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(20, num_features, generator=generator)
    clusters_N = torch.randint(20, (num_examples,), generator=generator)
    return centres[clusters_N] + torch.randn(num_examples, num_features, generator=generator)


def found_in(features_ND: Tensor, count: int, *, normalized: bool = True) -> Tensor:
    blocks = list(approximate_neighbours(features_ND, count, normalized=normalized))
    starts = [rows.start for rows, _ in blocks]
    assert starts == sorted(starts)
    return torch.cat([ids_BM for _, ids_BM in blocks])


def recall(found_NM: Tensor, exact_NM: Tensor) -> float:
    same = found_NM[:, :, None] == exact_NM[:, None, :]
    return float(same.any(dim=2).float().mean())


@pytest.fixture(autouse=True)
def faiss_is_installed() -> None:
    pytest.importorskip("faiss")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("normalized", [True, False])
def test_finds_nearly_all(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, *, normalized: bool
) -> None:
    # Of 150 lists; the 32 of few examples would hold all that is near.
    monkeypatch.setattr(module, "_NUM_SEARCHED", 4)
    features_ND = clustered(6000).to(dtype)
    found_NM = found_in(features_ND, 10, normalized=normalized)
    exact_NM = nearest_neighbours(features_ND, 10, normalized=normalized, search="exact")
    assert 0.9 < recall(found_NM, exact_NM) < 1
    assert found_NM.shape == (6000, 10)
    assert not (found_NM == torch.arange(6000)[:, None]).any()
    distinct = found_NM.sort(dim=1).values.diff(dim=1)
    assert (distinct > 0).all()


def test_where_the_lists_hold_too_little_all_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NUM_SEARCHED", 1)
    monkeypatch.setattr(module, "_LEAST_SEARCHED", 0)
    features_ND = clustered(500)
    # A list holds 40 in the mean, and 241 candidates are looked for.
    found_NM = found_in(features_ND, 120)
    assert torch.equal(found_NM, nearest_neighbours(features_ND, 120, search="exact"))


def test_threads_do_not_change_what_is_found_and_are_left_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import faiss

    monkeypatch.setattr(module, "_NUM_SEARCHED", 4)
    features_ND, before = clustered(6000, 64), torch.get_num_threads()
    faiss_before, found = faiss.omp_get_max_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(found_in(features_ND, 10))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert faiss.omp_get_max_threads() == faiss_before


def test_without_faiss_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str, package: str | None = None) -> ModuleSpec | None:
        return None

    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr("importlib.util.find_spec", nothing)
    with pytest.raises(MissingExtraError, match=r"'faiss-cpu'.*'lipt\[neighbours\]'"):
        found_in(torch.eye(3), 1)


def test_nearest_sorts_by_distance_and_then_by_column() -> None:
    rounding = 2.0**-50
    distances = torch.tensor(
        [[3.0, 1.0 + rounding, 1.0, torch.inf, 0.5], [0.0, 0.0, torch.inf, 1e-300, 0.0]],
        dtype=torch.float64,
    )
    assert nearest(distances, 4).tolist() == [[4, 1, 2, 0], [0, 1, 4, 3]]


def test_distances_are_rounded_to_the_nearest_and_then_tie() -> None:
    below_1 = 1.0 - 2.0**-53
    assert nearest(torch.tensor([[1.0, below_1]], dtype=torch.float64), 2).tolist() == [[0, 1]]
