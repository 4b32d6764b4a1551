from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.common.determinism.seeding import derive_generator
from lipt.coordinator.selection.solvers.lazy import lazy_greedy_torch
from lipt.coordinator.selection.solvers.levels import StoredLevels
from lipt.coordinator.selection.solvers.stochastic import (
    DEFAULT_EPSILON,
    sample_size,
    stochastic_facility_location,
    stochastic_greedy,
)


def random_levels(num_examples: int) -> StoredLevels:
    generator = torch.Generator().manual_seed(0)
    points_N2 = torch.rand(num_examples, 2, generator=generator)
    matrix_NN = (1000 * (1.5 - torch.cdist(points_N2, points_N2))).int()
    return StoredLevels(matrix_NN, matrix_NN.sum(dim=1, dtype=torch.int64))


def solve(
    levels: StoredLevels, budget: int, *, epsilon: float = DEFAULT_EPSILON, seed: int = 0
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
    looked_at: list[int] = []

    def gains(ids_B: Tensor) -> Tensor:
        assert ids_B.tolist() == sorted(set(ids_B.tolist()))
        looked_at.append(len(ids_B))
        return torch.zeros(len(ids_B))

    stochastic_greedy(
        gains,
        lambda _: None,
        num_candidates=500,
        budget=50,
        epsilon=DEFAULT_EPSILON,
        generator=derive_generator(0, "test"),
    )
    assert looked_at == [24] * 50


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
    counts = torch.zeros(10)

    def gains(ids_B: Tensor) -> Tensor:
        if len(seen) < 1:
            counts[ids_B] += 1
        seen.append(ids_B)
        return torch.zeros(len(ids_B))

    for seed in range(3000):
        seen: list[Tensor] = []
        stochastic_greedy(
            gains,
            lambda _: None,
            num_candidates=10,
            budget=5,
            epsilon=0.5,
            generator=derive_generator(seed, "test"),
        )
    assert ((counts - 600).abs() < 100).all()
