from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.coordinator.selection.gradients.vectors import SpaceName
from lipt.coordinator.selection.strategies.facility_location import facility_location
from lipt.coordinator.signals.signals import Signals


def make_signals(num_examples: int) -> Signals:
    generator = torch.Generator().manual_seed(0)
    return Signals(
        errors_NC=torch.randn(num_examples, 3, generator=generator),
        features_ND=torch.randn(num_examples, 6, generator=generator),
        labels_N=torch.zeros(num_examples, dtype=torch.int64),
    )


def similarities(signals: Signals, space: SpaceName) -> Tensor:
    vectors_NG = signals.features_ND.double()
    if space == "gradients":
        features_NF = torch.cat([vectors_NG, torch.ones(len(signals), 1)], dim=1)
        vectors_NG = (signals.errors_NC.double()[:, :, None] * features_NF[:, None, :]).flatten(1)
    directions_NG = functional.normalize(vectors_NG)
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
    signals = Signals(torch.ones(4, 1), features_N2, torch.zeros(4, dtype=torch.int64))
    chosen = facility_location(signals, 2, seed=0, space="features")
    assert chosen.indices_K.tolist() == [1, 3]
    assert chosen.weights_K.tolist() == [1.0, 1.0]


def test_distances_see_lengths() -> None:
    # 1, 2, 9 in one direction: a cosine takes them for the same.
    signals = Signals(
        torch.ones(3, 1), torch.tensor([[1.0], [9.0], [2.0]]), torch.zeros(3, dtype=torch.int64)
    )
    by_direction = facility_location(signals, 1, seed=0, space="features")
    by_distance = facility_location(signals, 1, seed=0, space="features", similarity="euclidean")
    assert by_direction.indices_K.tolist() == [0]
    assert by_distance.indices_K.tolist() == [2]


@pytest.mark.parametrize("space", ["gradients", "features"])
def test_is_plain_greedy(space: SpaceName) -> None:
    signals = make_signals(70)
    chosen = facility_location(signals, 15, seed=0, space=space)
    assert chosen.indices_K.tolist() == plain_greedy(similarities(signals, space), 15)


def test_the_default_stochastic_greedy_is_no_random_subset() -> None:
    # With an epsilon of 0.9, as DeepCore and apricot have it, it is close to one.
    signals = make_signals(300)
    similarity_NN = similarities(signals, "gradients")

    def value(indices_K: Tensor) -> float:
        return float(similarity_NN[indices_K].max(dim=0).values.sum())

    greedy = value(torch.tensor(plain_greedy(similarity_NN, 30)))
    drawn = max(
        value(torch.randperm(300, generator=torch.Generator().manual_seed(seed))[:30])
        for seed in range(10)
    )
    for seed in range(3):
        chosen = facility_location(signals, 30, seed=seed, solver="stochastic")
        assert (value(chosen.indices_K) - drawn) / (greedy - drawn) > 0.7


def test_the_order_of_the_data_does_not_matter() -> None:
    signals = make_signals(120)
    order_N = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    plain = facility_location(signals, 20, seed=0)
    moved = facility_location(signals.take(order_N), 20, seed=0)
    assert order_N[moved.indices_K].tolist() == plain.indices_K.tolist()


def test_equal_examples_end_with_distinct_ids() -> None:
    same = Signals(torch.ones(20, 2), torch.ones(20, 3), torch.zeros(20, dtype=torch.int64))
    assert facility_location(same, 12, seed=0).indices_K.tolist() == list(range(12))
