"""CAL on a line whose divergences are known, and against a loop over pairs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lipt.coordinator.selection.strategies.cal import (
    SMALLEST_PROBABILITY,
    cal,
    contrast,
    nearest,
    nearest_neighbors,
)
from lipt.coordinator.signals.signals import Signals
from tests.coordinator.selection.builders import of_right, random_predictions


def divergence(left: Tensor, right: Tensor) -> float:
    forward = (left * (left / right).log()).sum()
    backward = (right * (right / left).log()).sum()
    return float(forward + backward) / 2


def by_pairs(signals: Signals, count: int) -> list[float]:
    num_examples = len(signals)
    probabilities = signals.errors_NC.double()
    probabilities[torch.arange(num_examples), signals.labels_N] += 1
    rows = signals.features_ND.double()
    scores = []
    for i in range(num_examples):
        others = [j for j in range(num_examples) if j != i]
        others.sort(key=lambda j, i=i: (float((rows[i] - rows[j]).norm()), j))
        near = others[:count]
        scores.append(sum(divergence(probabilities[i], probabilities[j]) for j in near) / len(near))
    return scores


def test_the_largest_contrasts_are_kept() -> None:
    # Nearest neighbors: 0 and 1 of each other, 3 of 2 and 2 of 3. Between p = 0.8 and 0.2 the
    # divergence is 0.6 log 4, between 0.5 and 0.8 (0.3 log 1.6 + 0.3 log 2.5) / 2 = 0.15 log 4.
    positions = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    given = of_right(0.5, 0.8, 0.8, 0.2, features_ND=positions)
    scores = contrast(given, 1)
    assert scores.tolist() == pytest.approx([0.15 * math.log(4)] * 2 + [0.6 * math.log(4)] * 2)
    assert cal(given, 3, num_neighbors=1).indices_K.tolist() == [2, 3, 0]


@pytest.mark.parametrize("count", [1, 3, 10, 59])
def test_equals_a_loop_over_pairs(count: int) -> None:
    signals = random_predictions(60)
    assert contrast(signals, count).tolist() == pytest.approx(by_pairs(signals, count), rel=1e-5)


def test_fewer_neighbors_where_there_are_fewer_examples() -> None:
    signals = random_predictions(6)
    assert torch.equal(contrast(signals, 10), contrast(signals, 5))


def test_a_single_example_has_no_contrast() -> None:
    assert contrast(random_predictions(1), 10).tolist() == [0.0]
    assert cal(random_predictions(1), 1).indices_K.tolist() == [0]


def test_certain_and_opposite_predictions_stay_finite() -> None:
    # p is 1 and 0 against 0 and 1; a zero counts as the smallest probability.
    expected = (1 - SMALLEST_PROBABILITY) * -math.log(SMALLEST_PROBABILITY)
    assert contrast(of_right(1.0, 0.0), 1).tolist() == pytest.approx([expected] * 2)


def test_of_copies_the_lowest_ids_are_the_neighbors() -> None:
    base = random_predictions(4)
    copies = Signals(
        base.errors_NC.repeat(25, 1),
        torch.full((100, 7), 1 / 3),
        base.labels_N.repeat(25),
    )
    neighbors = nearest_neighbors(copies, 3).sort(dim=1).values
    assert neighbors[0].tolist() == [1, 2, 3]
    assert neighbors[2].tolist() == [0, 1, 3]
    assert (neighbors[3:] == torch.tensor([0, 1, 2])).all()
    assert cal(copies, 100).indices_K.sort().values.tolist() == list(range(100))


def test_nearest_sorts_by_distance_and_then_by_column() -> None:
    rounding = 2.0**-50
    distances = torch.tensor(
        [[3.0, 1.0 + rounding, 1.0, torch.inf, 0.5], [0.0, 0.0, torch.inf, 1e-300, 0.0]],
        dtype=torch.float64,
    )
    assert nearest(distances, 4).tolist() == [[4, 1, 2, 0], [0, 1, 4, 3]]
