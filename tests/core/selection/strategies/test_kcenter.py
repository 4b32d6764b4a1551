"""K-center on points of a line, and against the distances of all pairs."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from lipt.core.selection.gradients.vectors import Rows, SpaceName
from lipt.core.selection.strategies.kcenter import kcenter
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import (
    random_signals,
    random_subsets,
    signals_of,
    written_out,
)

SPACES: list[SpaceName] = ["features", "gradients"]


def pairwise(signals: Signals, space: SpaceName) -> tuple[Tensor, Tensor]:
    """Distances of all pairs, and from the mean, of vectors that are written out."""
    vectors = written_out(signals, space)
    return torch.cdist(vectors, vectors), (vectors - vectors.mean(dim=0)).norm(dim=1)


def radius(distances_NN: Tensor, chosen: list[int]) -> float:
    return float(distances_NN[chosen].min(dim=0).values.max())


def test_points_of_a_line() -> None:
    # The mean is 3.2: 3 comes first, then 10 (7 away), 0 (3 away), 2 and 1 (1 away each).
    line = signals_of(torch.tensor([[0.0], [1.0], [2.0], [3.0], [10.0]]))
    assert kcenter(line, 5).indices_K.tolist() == [3, 4, 0, 1, 2]


def test_gradients_can_take_the_place_of_features() -> None:
    # Features 0 and a bias: the gradient is the error, whose mean is (0.5, -0.5).
    errors = torch.tensor([[0.0, 0.0], [0.5, -0.5], [1.0, -1.0], [0.5, -0.5]])
    given = signals_of(torch.zeros(4, 1), errors)
    assert kcenter(given, 3, space="gradients").indices_K.tolist() == [1, 0, 2]
    assert kcenter(given, 3, space="features").indices_K.tolist() == [0, 1, 2]


@pytest.mark.parametrize("space", SPACES)
def test_equals_choice_from_all_pairs(space: SpaceName) -> None:
    signals = random_signals(150)
    distances_NN, from_mean_N = pairwise(signals, space)
    expected = [int(from_mean_N.argmin())]
    while len(expected) < 150:
        expected.append(int(distances_NN[expected].min(dim=0).values.argmax()))
    assert kcenter(signals, 150, space=space).indices_K.tolist() == expected


def test_radius_is_at_most_twice_the_smallest_possible() -> None:
    for seed in range(5):
        signals = random_signals(12, seed=seed)
        distances_NN, _ = pairwise(signals, "features")
        best = min(radius(distances_NN, list(chosen)) for chosen in combinations(range(12), 3))
        assert radius(distances_NN, kcenter(signals, 3).indices_K.tolist()) <= 2 * best


@pytest.mark.parametrize("space", SPACES)
def test_radius_is_smaller_than_of_random_choices(space: SpaceName) -> None:
    signals = random_signals(300)
    distances_NN, _ = pairwise(signals, space)
    found = radius(distances_NN, kcenter(signals, 30, space=space).indices_K.tolist())
    assert found < min(radius(distances_NN, drawn.tolist()) for drawn in random_subsets(300, 30))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("num_copies", [1, 5, 200])
def test_when_only_copies_are_left_the_lowest_ids_follow(space: SpaceName, num_copies: int) -> None:
    signals = random_signals(3).take(torch.arange(3).repeat(num_copies))
    chosen = kcenter(signals, len(signals), space=space).indices_K.tolist()
    assert sorted(chosen[:3]) == [0, 1, 2]
    assert chosen[3:] == list(range(3, len(signals)))


def test_few_rows_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    products = Rows.products

    def counted(rows: Rows, positions_B: Tensor) -> Tensor:
        asked.append(len(positions_B))
        return products(rows, positions_B)

    monkeypatch.setattr(Rows, "products", counted)
    kcenter(random_signals(2000), 500)
    assert max(asked) <= 64
    # Most of what was computed ahead was used.
    assert sum(asked) < 1500
