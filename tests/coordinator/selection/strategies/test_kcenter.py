"""K-center on points of a line, and against the distances of all pairs."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from lipt.coordinator.selection.gradients.rows import Rows
from lipt.coordinator.selection.gradients.vectors import SpaceName, in_space
from lipt.coordinator.selection.strategies.kcenter import farthest_first, kcenter
from lipt.coordinator.signals.signals import Signals

SPACES: list[SpaceName] = ["features", "gradients"]


def signals_of(features_ND: Tensor, errors_NC: Tensor | None = None) -> Signals:
    num_examples = len(features_ND)
    return Signals(
        errors_NC=torch.zeros(num_examples, 2) if errors_NC is None else errors_NC,
        features_ND=features_ND,
        labels_N=torch.zeros(num_examples, dtype=torch.int64),
    )


def generic(num_examples: int, seed: int = 0) -> Signals:
    generator = torch.Generator().manual_seed(seed)
    return signals_of(
        torch.randn(num_examples, 6, generator=generator),
        torch.randn(num_examples, 3, generator=generator),
    )


def pairwise(signals: Signals, name: SpaceName) -> tuple[Tensor, Tensor]:
    """Distances of all pairs, and from the mean, of vectors that are written out."""
    vectors = signals.features_ND.double()
    if name == "gradients":
        extended = torch.cat([vectors, vectors.new_ones(len(vectors), 1)], dim=1)
        vectors = torch.einsum("nc,nd->ncd", signals.errors_NC.double(), extended).flatten(1)
    return torch.cdist(vectors, vectors), (vectors - vectors.mean(dim=0)).norm(dim=1)


def radius(distances_NN: Tensor, chosen: list[int]) -> float:
    return float(distances_NN[chosen].min(dim=0).values.max())


def test_points_of_a_line() -> None:
    # The mean is 3.2: 3 comes first, then 10 (7 away), 0 (3 away), 2 and 1 (1 away each).
    line = signals_of(torch.tensor([[0.0], [1.0], [2.0], [3.0], [10.0]]))
    assert kcenter(line, 5).indices_K.tolist() == [3, 4, 0, 1, 2]
    assert kcenter(line, 2).weights_K.tolist() == [1.0, 1.0]


def test_gradients_can_take_the_place_of_features() -> None:
    # Features 0 and a bias: the gradient is the error, whose mean is (0.5, -0.5).
    errors = torch.tensor([[0.0, 0.0], [0.5, -0.5], [1.0, -1.0], [0.5, -0.5]])
    given = signals_of(torch.zeros(4, 1), errors)
    assert kcenter(given, 3, space="gradients").indices_K.tolist() == [1, 0, 2]
    assert kcenter(given, 3, space="features").indices_K.tolist() == [0, 1, 2]


@pytest.mark.parametrize("space", SPACES)
def test_equals_choice_from_all_pairs(space: SpaceName) -> None:
    signals = generic(150)
    distances_NN, from_mean_N = pairwise(signals, space)
    expected = [int(from_mean_N.argmin())]
    while len(expected) < 150:
        expected.append(int(distances_NN[expected].min(dim=0).values.argmax()))
    assert kcenter(signals, 150, space=space).indices_K.tolist() == expected


@pytest.mark.parametrize("space", SPACES)
def test_rows_computed_ahead_and_blocks_change_nothing(space: SpaceName) -> None:
    signals = generic(200)
    expected = farthest_first(Rows(in_space(signals, space)), 60)
    for rows_ahead, block_bytes in ((1, 10**6), (7, 1000), (200, 1)):
        split = Rows(in_space(signals, space), block_bytes=block_bytes)
        assert torch.equal(farthest_first(split, 60, rows_ahead=rows_ahead), expected)


@pytest.mark.parametrize("space", SPACES)
def test_order_of_the_data_does_not_matter(space: SpaceName) -> None:
    signals = generic(200)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    shuffled = kcenter(signals.take(order), 40, space=space).indices_K
    assert torch.equal(order[shuffled], kcenter(signals, 40, space=space).indices_K)


def test_radius_is_at_most_twice_the_smallest_possible() -> None:
    for seed in range(5):
        signals = generic(12, seed)
        distances_NN, _ = pairwise(signals, "features")
        best = min(radius(distances_NN, list(chosen)) for chosen in combinations(range(12), 3))
        assert radius(distances_NN, kcenter(signals, 3).indices_K.tolist()) <= 2 * best


@pytest.mark.parametrize("space", SPACES)
def test_radius_is_smaller_than_of_random_choices(space: SpaceName) -> None:
    signals = generic(300)
    distances_NN, _ = pairwise(signals, space)
    found = radius(distances_NN, kcenter(signals, 30, space=space).indices_K.tolist())
    generator = torch.Generator().manual_seed(2)
    draws = [torch.randperm(300, generator=generator)[:30].tolist() for _ in range(20)]
    assert found < min(radius(distances_NN, draw) for draw in draws)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("num_copies", [1, 5, 200])
def test_when_only_copies_are_left_the_lowest_ids_follow(space: SpaceName, num_copies: int) -> None:
    signals = generic(3).take(torch.arange(3).repeat(num_copies))
    chosen = kcenter(signals, len(signals), space=space).indices_K.tolist()
    assert sorted(chosen[:3]) == [0, 1, 2]
    assert chosen[3:] == list(range(3, len(signals)))


def test_all_equal_examples_are_taken_in_order() -> None:
    same = generic(1).take(torch.zeros(50, dtype=torch.int64))
    for space in SPACES:
        assert kcenter(same, 50, space=space).indices_K.tolist() == list(range(50))


def test_half_precision_is_read_exactly() -> None:
    half = generic(80)
    half = Signals(half.errors_NC.half(), half.features_ND.half() * 300, half.labels_N)
    whole = half.take(torch.arange(80))
    for space in SPACES:
        expected = kcenter(whole, 20, space=space).indices_K
        assert torch.equal(kcenter(half, 20, space=space).indices_K, expected)


def test_few_rows_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Rows(in_space(generic(2000), "features"))
    asked: list[int] = []
    products = space.products

    def counted(positions_B: Tensor) -> Tensor:
        asked.append(len(positions_B))
        return products(positions_B)

    monkeypatch.setattr(space, "products", counted)
    farthest_first(space, 500)
    assert max(asked) <= 64
    # Most of what was computed ahead was used.
    assert sum(asked) < 1500
