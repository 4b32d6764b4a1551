"""The partition greedy against itself written plainly, its bound, and the memory it keeps to."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection.gradients.pairs import PairwiseSimilarity, scaled_cosine
from lipt.core.selection.gradients.vectors import gradients_of
from lipt.core.selection.solvers import partition
from lipt.core.selection.solvers.lazy import lazy_greedy
from lipt.core.selection.solvers.levels import StoredLevels
from lipt.core.selection.solvers.partition import better_of, partition_greedy
from tests.core.selection.builders import random_signals

# By hand: a greedy choice of two takes row 2, which gains 13 alone, and then row 0: 20 of 24.
LEVELS_NT = torch.tensor([[6, 6, 0, 0], [0, 0, 6, 6], [0, 5, 5, 3]], dtype=torch.int32)


def make_similarity(num_examples: int, seed: int = 0) -> PairwiseSimilarity:
    return scaled_cosine(gradients_of(random_signals(num_examples, 3, 8, seed=seed)))


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


def plain_greedy(matrix_NN: Tensor, ids: list[int], targets: list[int], budget: int) -> list[int]:
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
        for example in plain_greedy(matrix_NN, part, part, budget)
    ]
    expected = plain_greedy(matrix_NN, sorted(union), list(range(num_examples)), budget)
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
    alone = [plain_greedy(matrix_NN, part, part, budget) for part in parts]
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
    expected = plain_greedy(matrix_NN, list(range(40)), list(range(40)), 10)
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
    monkeypatch.setattr(partition, "lazy_greedy", remembering)
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
