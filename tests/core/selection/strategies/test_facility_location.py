from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.selection.gradients.vectors import SpaceName
from lipt.core.selection.strategies.facility_location import facility_location
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import (
    random_signals,
    random_subsets,
    signals_of,
    written_out,
)


def similarities(signals: Signals, space: SpaceName) -> Tensor:
    directions_NG = functional.normalize(written_out(signals, space))
    return (1 + directions_NG @ directions_NG.T) / 2


def plain_greedy(similarity_NN: Tensor, budget: int) -> list[int]:
    best_N, chosen = torch.zeros(len(similarity_NN), dtype=torch.float64), []
    for _ in range(budget):
        gains_N = (similarity_NN - best_N).clamp(min=0).sum(dim=1)
        gains_N[chosen] = -1
        chosen.append(int(gains_N.argmax()))
        best_N = torch.maximum(best_N, similarity_NN[chosen[-1]])
    return chosen


def test_by_hand() -> None:
    # Directions at 0, 10, 20 and 190 degrees: the middle of three, then what is opposite.
    angles_N = torch.tensor([0.0, 10.0, 20.0, 190.0]).deg2rad()
    features_N2 = torch.stack([angles_N.cos(), angles_N.sin()], dim=1)
    # Lengths do not count in a cosine.
    features_N2 *= torch.tensor([[1.0], [5.0], [2.0], [9.0]])
    signals = signals_of(features_N2)
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
def test_is_plain_greedy(space: SpaceName) -> None:
    signals = random_signals(70)
    chosen = facility_location(signals, 15, seed=0, space=space)
    assert chosen.indices_K.tolist() == plain_greedy(similarities(signals, space), 15)


def test_the_default_stochastic_greedy_is_no_random_subset() -> None:
    # With an epsilon of 0.9, as DeepCore and apricot have it, it is close to one.
    signals = random_signals(300)
    similarity_NN = similarities(signals, "gradients")

    def value(indices_K: Tensor) -> float:
        return float(similarity_NN[indices_K].max(dim=0).values.sum())

    greedy = value(torch.tensor(plain_greedy(similarity_NN, 30)))
    drawn = sum(value(subset_K) for subset_K in random_subsets(300, 30)) / 20
    for seed in range(3):
        chosen = facility_location(signals, 30, seed=seed, solver="stochastic")
        assert (value(chosen.indices_K) - drawn) / (greedy - drawn) > 0.7


def test_parts_are_drawn_by_the_seed() -> None:
    signals = random_signals(60)
    one, same, other = (
        facility_location(signals, 6, seed=seed, partitions=3).indices_K.tolist()
        for seed in (0, 0, 1)
    )
    assert one == same
    assert one != other
