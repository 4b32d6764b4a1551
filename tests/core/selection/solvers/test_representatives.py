"""Facility location by every solver, and where memory decides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.core.selection.gradients.pairs import PairwiseSimilarity, scaled_cosine
from lipt.core.selection.gradients.vectors import Vectors, gradients_of
from lipt.core.selection.solvers.levels import (
    ComputedLevels,
    StoredLevels,
    fit_scale,
    store_levels,
)
from lipt.core.selection.solvers.representatives import (
    PrecisionName,
    Representatives,
    SolverName,
    choose_representatives,
)
from tests.core.selection.builders import random_signals

solvers = pytest.mark.parametrize("solver", ["auto", "lazy", "stochastic", "partition"])


def make_similarity(num_examples: int, seed: int = 0) -> PairwiseSimilarity:
    return scaled_cosine(gradients_of(random_signals(num_examples, 3, 8, seed=seed)))


def choose(
    similarity: PairwiseSimilarity,
    budget: int,
    solver: SolverName = "auto",
    *,
    precision: PrecisionName = "auto",
    partitions: int = 0,
    matrix_bytes: int = 10**6,
) -> Representatives:
    return choose_representatives(
        similarity,
        budget,
        solver=solver,
        precision=precision,
        epsilon=0.1,
        partitions=partitions,
        seed=0,
        matrix_bytes=matrix_bytes,
    )


def value(similarity: PairwiseSimilarity, chosen_K: Tensor) -> float:
    return float(similarity.block(chosen_K, slice(None)).max(dim=0).values.double().sum())


def share_of_greedy(similarity: PairwiseSimilarity, chosen_K: Tensor) -> float:
    """(F - F random) / (F greedy - F random): 0.99 of F is what random subsets have."""
    order = torch.randperm(len(similarity), generator=torch.Generator().manual_seed(3))
    drawn = value(similarity, order[: len(chosen_K)])
    greedy = value(similarity, plain_greedy(similarity, len(chosen_K)))
    return (value(similarity, chosen_K) - drawn) / (greedy - drawn)


def plain_greedy(similarity: PairwiseSimilarity, budget: int) -> Tensor:
    matrix_NN = similarity.block(slice(None), slice(None)).double()
    best_N, chosen = torch.zeros(len(similarity), dtype=torch.float64), []
    for _ in range(budget):
        gains_N = (matrix_NN - best_N).clamp(min=0).sum(dim=1)
        gains_N[chosen] = -1
        chosen.append(int(gains_N.argmax()))
        best_N = torch.maximum(best_N, matrix_NN[chosen[-1]])
    return torch.tensor(chosen)


@pytest.mark.parametrize("precision", ["auto", "24-bit"])
def test_lazy_is_plain_greedy(precision: PrecisionName) -> None:
    similarity = make_similarity(80)
    chosen_K = choose(similarity, 20, precision=precision).chosen_K
    assert chosen_K.tolist() == plain_greedy(similarity, 20).tolist()


@pytest.mark.parametrize(
    ("solver", "precision", "least"),
    [
        ("lazy", "16-bit", 0.999),
        ("lazy", "8-bit", 0.99),
        ("stochastic", "auto", 0.8),
        ("partition", "auto", 0.8),
    ],
)
def test_quality_above_random(solver: SolverName, precision: PrecisionName, least: float) -> None:
    similarity = make_similarity(300)
    chosen_K = choose(similarity, 30, solver, precision=precision).chosen_K
    assert share_of_greedy(similarity, chosen_K) > least


@solvers
@pytest.mark.parametrize(("num_examples", "budget"), [(1, 1), (2, 1), (25, 25), (25, 3)])
@pytest.mark.parametrize("matrix_bytes", [1, 100, 10**6])
def test_distinct_ids_whatever_memory_there_is(
    solver: SolverName, num_examples: int, budget: int, matrix_bytes: int
) -> None:
    similarity = make_similarity(num_examples)
    chosen = choose(similarity, budget, solver, matrix_bytes=matrix_bytes).chosen_K.tolist()
    assert len(set(chosen)) == budget
    assert set(chosen) <= set(range(num_examples))


@solvers
def test_equal_examples_are_all_the_same_and_end(solver: SolverName) -> None:
    same = scaled_cosine(Vectors(torch.ones(30, 3), torch.ones(30, 2)))
    chosen = choose(same, 20, solver, matrix_bytes=400).chosen_K.tolist()
    assert len(set(chosen)) == 20


def test_memory_decides_between_all_pairs_and_parts() -> None:
    similarity = make_similarity(40)
    assert isinstance(choose(similarity, 5).levels, StoredLevels)
    parts = choose(similarity, 5, "partition", matrix_bytes=1599)
    assert torch.equal(choose(similarity, 5, matrix_bytes=1599).chosen_K, parts.chosen_K)
    # Of one byte a pair all fit: chosen by those, but who represents whom is computed.
    eight_bits = choose(similarity, 5, matrix_bytes=1600)
    expected = choose(similarity, 5, "lazy", precision="8-bit")
    assert torch.equal(eight_bits.chosen_K, expected.chosen_K)
    for found in (parts, eight_bits):
        assert isinstance(found.levels, ComputedLevels)
        assert found.levels.scale.precision == "24-bit"


@pytest.mark.parametrize("solver", ["auto", "partition"])
def test_one_partition_is_exact_greedy_to_the_bit(solver: SolverName) -> None:
    similarity = make_similarity(70)
    exact = choose(similarity, 9, "lazy")
    found = choose(similarity, 9, solver, partitions=1)
    assert torch.equal(found.chosen_K, exact.chosen_K)
    ids_N = torch.arange(70)
    assert torch.equal(found.levels.rows(ids_N), exact.levels.rows(ids_N))


def test_given_partitions_are_made_where_all_pairs_would_fit() -> None:
    similarity = make_similarity(70)
    found = choose(similarity, 9, partitions=3).chosen_K
    assert torch.equal(found, choose(similarity, 9, "partition", partitions=3).chosen_K)
    assert not torch.equal(found, choose(similarity, 9, "partition", partitions=2).chosen_K)


def test_stochastic_rows_are_the_same_stored_or_computed() -> None:
    similarity = make_similarity(60)
    stored = choose(similarity, 12, "stochastic")
    computed = choose(similarity, 12, "stochastic", matrix_bytes=10)
    assert isinstance(stored.levels, StoredLevels)
    assert isinstance(computed.levels, ComputedLevels)
    assert torch.equal(stored.chosen_K, computed.chosen_K)


@pytest.mark.parametrize("solver", ["lazy", "stochastic"])
def test_who_represents_whom_is_not_read_off_eight_bits(solver: SolverName) -> None:
    similarity = make_similarity(300)
    found = choose(similarity, 60, solver, precision="8-bit")
    expected_NK = similarity.block(slice(None), found.chosen_K)
    nearest_N = found.levels.rows(found.chosen_K).argmax(dim=0)
    assert torch.equal(nearest_N, expected_NK.argmax(dim=1))
    # The levels that the choice was made by leave ties.
    eight = store_levels(similarity, fit_scale(similarity, "8-bit")).rows(found.chosen_K)
    assert ((eight == eight.max(dim=0).values).sum(dim=0) > 1).any()
