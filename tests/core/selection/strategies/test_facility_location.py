from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.selection.strategies.facility_location import (
    density_weights,
    facility_location,
    neighbour_radii,
    num_neighbours,
    subzerocore,
)
from lipt.core.selection.vectors import Space, Vectors
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import (
    at_angles,
    plain_greedy,
    random_signals,
    signals_of,
    written_out,
)


def similarities(signals: Signals, space: Space) -> Tensor:
    directions_NG = functional.normalize(written_out(signals, space))
    return (1 + directions_NG @ directions_NG.T) / 2


def test_by_hand() -> None:
    # Directions at 0, 10, 20 and 190 degrees: the middle of three, then what is opposite.
    # Lengths do not count in a cosine.
    lengths_N1 = torch.tensor([[1.0], [5.0], [2.0], [9.0]])
    signals = signals_of(at_angles(0, 10, 20, 190) * lengths_N1)
    chosen = facility_location(signals, 2, seed=0, space="features")
    assert chosen.indices_K.tolist() == [1, 3]


def test_distances_see_lengths() -> None:
    # 1, 2, 9 in one direction: a cosine takes them for the same.
    signals = signals_of(torch.tensor([[1.0], [9.0], [2.0]]))
    by_direction = facility_location(signals, 1, seed=0, space="features")
    by_distance = facility_location(signals, 1, seed=0, space="features", similarity="euclidean")
    assert by_direction.indices_K.tolist() == [0]
    assert by_distance.indices_K.tolist() == [2]


@pytest.mark.parametrize("space", ["gradients", "features"])
def test_is_plain_greedy(space: Space) -> None:
    signals = random_signals(70)
    chosen = facility_location(signals, 15, seed=0, space=space)
    assert chosen.indices_K.tolist() == plain_greedy(similarities(signals, space), 15)


def test_parts_are_drawn_by_the_seed() -> None:
    signals = random_signals(60)
    one, same, other = (
        facility_location(signals, 6, seed=seed, partitions=3).indices_K.tolist()
        for seed in (0, 0, 1)
    )
    assert one == same
    assert one != other


def weighted(signals: Signals, budget: int) -> Tensor:
    """Row j: weight of j times its similarity to all, with everything sorted and written out."""
    size = len(signals)
    count = next(n for n in range(1, size) if 1 - uncovered(size, budget, n) >= 0.6)
    similarity_NN = similarities(signals, "features")
    # The first in each sorted row is the example itself.
    radii_N = (1 - similarity_NN).sort(dim=1).values[:, count]
    z_N = (radii_N - radii_N.mean()) / radii_N.std(correction=0)
    return (-z_N.square() / 2).exp()[:, None] * similarity_NN


def uncovered(num_examples: int, budget: int, count: int) -> float:
    ways = math.comb(num_examples - 1 - count, budget)
    return ways / math.comb(num_examples - 1, budget)


@pytest.mark.parametrize(
    ("num_examples", "budget", "coverage", "expected"),
    [
        # 387/499 386/498 385/497 384/496 = 0.361, and 0.466 without the last.
        (500, 112, 0.6, 4),
        (11, 1, 0.6, 6),  # 9/10 8/9 7/8 ... = (10 - n) / 10
        (11, 1, 0.05, 1),
        (11, 10, 0.6, 1),  # one is left out, and all the others are chosen
        (11, 11, 0.6, 1),
        (2, 1, 0.6, 1),
        (1, 1, 0.6, 0),
    ],
)
def test_neighbours_by_hand(num_examples: int, budget: int, coverage: float, expected: int) -> None:
    assert num_neighbours(num_examples, budget, coverage) == expected


def test_radii_by_hand() -> None:
    # The second nearest is 60, 30, 90 degrees away; lengths do not count.
    vectors = Vectors(at_angles(0, 30, 90) * torch.tensor([[1.0], [7.0], [2.0]]))
    expected = [(1 - math.cos(math.radians(angle))) / 2 for angle in (90, 60, 90)]
    assert neighbour_radii(vectors, 2).tolist() == pytest.approx(expected, abs=1e-6)


def test_weights_by_hand() -> None:
    # Mean 2, variance 2: one deviation of sqrt(2), and two of 1 / sqrt(2), from the mean.
    radii_N = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    expected = [math.exp(-1), math.exp(-0.25), 1.0, math.exp(-0.25), math.exp(-1)]
    assert density_weights(radii_N).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("budget", [1, 8, 30])
def test_subzerocore_is_plain_greedy(budget: int) -> None:
    for seed in range(3):
        signals = random_signals(70, seed=seed)
        chosen = subzerocore(signals, budget, seed=0).indices_K
        assert chosen.tolist() == plain_greedy(weighted(signals, budget), budget)
