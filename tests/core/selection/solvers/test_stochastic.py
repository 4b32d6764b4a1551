from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection.solvers.lazy import lazy_greedy_torch
from lipt.core.selection.solvers.levels import LevelRows, StoredLevels
from lipt.core.selection.solvers.stochastic import (
    DEFAULT_EPSILON,
    sample_size,
    stochastic_facility_location,
)


def random_levels(num_examples: int) -> StoredLevels:
    generator = torch.Generator().manual_seed(0)
    points_N2 = torch.rand(num_examples, 2, generator=generator)
    matrix_NN = (1000 * (1.5 - torch.cdist(points_N2, points_N2))).int()
    return StoredLevels(matrix_NN, matrix_NN.sum(dim=1, dtype=torch.int64))


class Watched:
    """Examples that are all alike, and which of them are looked at for a pick."""

    def __init__(self, num_examples: int) -> None:
        self.num_examples = num_examples
        self.samples: list[list[int]] = []

    def __len__(self) -> int:
        return self.num_examples

    def rows(self, ids_n: Tensor) -> Tensor:
        if len(ids_n) > 1:
            self.samples.append(ids_n.tolist())
        return torch.zeros(len(ids_n), self.num_examples, dtype=torch.int32)


def solve(
    levels: LevelRows, budget: int, *, epsilon: float = DEFAULT_EPSILON, seed: int = 0
) -> Tensor:
    generator = derive_generator(seed, "test")
    return stochastic_facility_location(levels, budget, epsilon=epsilon, generator=generator)


def value(levels: StoredLevels, chosen_K: Tensor) -> float:
    return float(levels.matrix_NT[chosen_K].max(dim=0).values.double().sum())


@pytest.mark.parametrize(
    ("num_candidates", "budget", "epsilon", "expected"),
    [
        (1000, 100, 0.1, 24),  # 10 ln 10 = 23.03
        (1000, 100, 0.9, 2),  # 1.05: hardly a choice, which is why 0.9 is no default
        (50_000, 5_000, 0.01, 47),  # 46.05
        (7, 7, 0.1, 3),
    ],
)
def test_sample_sizes(num_candidates: int, budget: int, epsilon: float, expected: int) -> None:
    assert sample_size(num_candidates, budget, epsilon) == expected


def test_the_default_looks_at_more_than_one_candidate_per_pick() -> None:
    watched = Watched(500)
    solve(watched, 50)
    assert [len(sample) for sample in watched.samples] == [24] * 50
    assert all(sample == sorted(set(sample)) for sample in watched.samples)


def test_the_default_is_close_to_greedy_and_far_from_random() -> None:
    levels = random_levels(400)
    greedy = value(levels, lazy_greedy_torch(levels, 40))
    drawn = value(levels, torch.randperm(400, generator=torch.Generator().manual_seed(1))[:40])
    assert (value(levels, solve(levels, 40)) - drawn) / (greedy - drawn) > 0.8
    # What the libraries ship as the default samples next to nothing.
    assert (value(levels, solve(levels, 40, epsilon=0.9)) - drawn) / (greedy - drawn) < 0.7


def test_a_sample_of_everything_is_greedy() -> None:
    levels = random_levels(60)
    chosen = solve(levels, 20, epsilon=1e-30)
    assert chosen.tolist() == lazy_greedy_torch(levels, 20).tolist()


def test_one_seed_gives_one_answer() -> None:
    levels = random_levels(100)
    assert torch.equal(solve(levels, 10), solve(levels, 10))
    assert not torch.equal(solve(levels, 10), solve(levels, 10, seed=1))


@pytest.mark.parametrize(("num_examples", "budget"), [(1, 1), (9, 9), (30, 29), (30, 1)])
def test_distinct_ids_to_the_last(num_examples: int, budget: int) -> None:
    chosen = solve(random_levels(num_examples), budget)
    assert len(set(chosen.tolist())) == budget


def test_every_candidate_is_as_likely_to_be_looked_at() -> None:
    # 3,000 samples of ceil(10 / 5 ln 2) = 2 of 10: each 600 times, deviation 21.9.
    counts_N = torch.zeros(10)
    for seed in range(3000):
        watched = Watched(10)
        solve(watched, 5, epsilon=0.5, seed=seed)
        counts_N[watched.samples[0]] += 1
    assert ((counts_N - 600).abs() < 100).all()
