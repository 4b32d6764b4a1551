"""Facility location by every solver, and where memory decides."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection.gradients.pairs import PairwiseSimilarity, scaled_cosine
from lipt.core.selection.gradients.vectors import Vectors, gradients_of
from lipt.core.selection.solvers import representatives
from lipt.core.selection.solvers.greedy import lazy_greedy
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
    better_of,
    choose_representatives,
    partition_greedy,
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


# By hand: a greedy choice of two takes row 2, which gains 13 alone, and then row 0: 20 of 24.
LEVELS_NT = torch.tensor([[6, 6, 0, 0], [0, 0, 6, 6], [0, 5, 5, 3]], dtype=torch.int32)


def solve(similarity: PairwiseSimilarity, budget: int, partitions: int) -> Tensor:
    generator = derive_generator(0, "test")
    return partition_greedy(similarity, budget, generator=generator, partitions=partitions)


def parts_of(num_examples: int, partitions: int) -> list[list[int]]:
    """The parts that `solve` draws: even slices of one shuffle."""
    order = torch.randperm(num_examples, generator=derive_generator(0, "test")).tolist()
    edges = [num_examples * part // partitions for part in range(partitions + 1)]
    return [sorted(order[start:stop]) for start, stop in pairwise(edges)]


def mean_of(matrix_NN: Tensor, chosen: list[int], targets: list[int]) -> float:
    return float(matrix_NN[chosen][:, targets].amax(dim=0).mean())


def greedy_among(matrix_NN: Tensor, ids: list[int], targets: list[int], budget: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(budget):
        left = [example for example in ids if example not in chosen]
        chosen.append(max(left, key=lambda j: mean_of(matrix_NN, [*chosen, j], targets)))
    return chosen


@pytest.mark.parametrize(("num_examples", "budget", "partitions"), [(60, 7, 2), (61, 5, 4)])
def test_is_greedy_over_what_greedy_takes_of_each_part(
    num_examples: int, budget: int, partitions: int
) -> None:
    similarity = make_similarity(num_examples)
    matrix_NN = similarity.block(slice(None), slice(None)).double()
    union = [
        example
        for part in parts_of(num_examples, partitions)
        for example in greedy_among(matrix_NN, part, part, budget)
    ]
    expected = greedy_among(matrix_NN, sorted(union), list(range(num_examples)), budget)
    assert solve(similarity, budget, partitions).tolist() == expected


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("budget", "partitions"), [(1, 3), (2, 3), (3, 2)])
def test_keeps_its_bound(budget: int, partitions: int, seed: int) -> None:
    similarity = make_similarity(12, seed)
    matrix_NN = similarity.block(slice(None), slice(None)).double()
    everything, parts = list(range(12)), parts_of(12, partitions)
    subsets = [list(subset) for size in (1, 2, 3) for subset in combinations(everything, size)]
    epsilon = max(
        abs(mean_of(matrix_NN, subset, part) - mean_of(matrix_NN, subset, everything))
        for subset in subsets
        for part in parts
    )
    best = max(
        mean_of(matrix_NN, subset, everything) for subset in subsets if len(subset) == budget
    )
    found = mean_of(matrix_NN, solve(similarity, budget, partitions).tolist(), everything)
    assert found >= (1 - math.exp(-1)) / min(partitions, budget) * best - 2 * epsilon
    # What the bound is of: no worse than any part's own choice.
    alone = [greedy_among(matrix_NN, part, part, budget) for part in parts]
    assert found >= max(mean_of(matrix_NN, chosen, everything) for chosen in alone) - 1e-6


def test_a_part_that_chose_better_than_the_second_round_stands() -> None:
    levels = StoredLevels(LEVELS_NT, LEVELS_NT.sum(dim=1, dtype=torch.int64))
    chosen_K = lazy_greedy(levels, 2)
    assert chosen_K.tolist() == [2, 0]
    better, worse = torch.tensor([1, 0]), torch.tensor([1, 2])
    assert better_of(levels, chosen_K, [worse, better]).tolist() == [1, 0]
    assert better_of(levels, chosen_K, [worse]).tolist() == [2, 0]


def test_a_better_part_that_chose_fewer_is_filled_up() -> None:
    levels_NT = torch.tensor([[9, 9], [0, 1], [1, 0], [2, 2]], dtype=torch.int32)
    levels = StoredLevels(levels_NT, levels_NT.sum(dim=1, dtype=torch.int64))
    chosen_K = torch.tensor([1, 2, 3])
    assert better_of(levels, chosen_K, [torch.tensor([0])]).tolist() == [0, 1, 2]


def test_what_fills_a_part_up_is_not_in_it_already() -> None:
    levels_NT = torch.tensor([[0, 9], [0, 1], [1, 0], [9, 0]], dtype=torch.int32)
    levels = StoredLevels(levels_NT, levels_NT.sum(dim=1, dtype=torch.int64))
    assert better_of(levels, torch.tensor([0, 1, 2]), [torch.tensor([3, 0])]).tolist() == [3, 0, 1]


def test_parts_that_take_all_are_exact_greedy() -> None:
    similarity = make_similarity(40)
    matrix_NN = similarity.block(slice(None), slice(None)).double()
    expected = greedy_among(matrix_NN, list(range(40)), list(range(40)), 10)
    assert solve(similarity, 10, 4).tolist() == expected


def test_more_partitions_than_examples_are_one_each() -> None:
    assert sorted(solve(make_similarity(5), 3, 50).tolist()) == sorted(
        solve(make_similarity(5), 3, 5).tolist()
    )


def test_threads_do_not_change_the_choice() -> None:
    similarity, before = make_similarity(1500), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(solve(similarity, 30, 3).tolist())
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("num_examples", "budget"), [(60, 6), (100, 30), (100, 90)])
def test_no_matrix_of_the_partition_greedy_exceeds_its_memory(
    num_examples: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def remembering(levels: StoredLevels, count: int) -> Tensor:
        sizes.append(levels.matrix_NT.numel() * levels.matrix_NT.element_size())
        return solved(levels, count)

    solved = lazy_greedy
    monkeypatch.setattr(representatives, "lazy_greedy", remembering)
    chosen_K = partition_greedy(
        make_similarity(num_examples),
        budget,
        generator=derive_generator(0, "test"),
        matrix_bytes=900,
    )
    assert len(set(chosen_K.tolist())) == budget
    # Parts of at most 30, and a second round only where it has something to choose from.
    num_parts = -(-num_examples // 30)
    assert len(sizes) == num_parts + (budget < 30)
    assert max(sizes) <= 900


def test_one_seed_gives_one_partition() -> None:
    similarity = make_similarity(50)
    first, again, other = (
        partition_greedy(similarity, 10, generator=derive_generator(seed, "test")).tolist()
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
