"""CAL on a line whose divergences are known, and against a loop over pairs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lipt.core.selection.strategies.cal import (
    SMALLEST_PROBABILITY,
    cal,
    contrast,
    nearest,
)
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import of_right, random_predictions


def divergence(of: Tensor, from_: Tensor) -> float:
    return float((of * (of / from_).log()).sum())


def by_pairs(signals: Signals, count: int) -> list[float]:
    num_examples = len(signals)
    probabilities = signals.errors_NC.double()
    probabilities[torch.arange(num_examples), signals.labels_N] += 1
    rows = torch.nn.functional.normalize(signals.features_ND.double())
    scores = []
    for i in range(num_examples):
        others = [j for j in range(num_examples) if j != i]
        others.sort(key=lambda j, i=i: (float((rows[i] - rows[j]).norm()), j))
        near = others[:count]
        total = sum(divergence(probabilities[j], probabilities[i]) for j in near)
        scores.append(total / len(near))
    return scores


# By direction, nearest are 0 and 1 of each other, and 2 and 3.
DIRECTIONS = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])


def test_the_divergence_is_the_neighbors_from_the_candidate() -> None:
    # p of the neighbor times its log ratio to the candidate's: for 0 that is
    # 0.8 log (0.8 / 0.5) + 0.2 log (0.2 / 0.5), for 1 it is half of log (0.5^2 / (0.8 0.2)).
    given = of_right(0.5, 0.8, 0.8, 0.2, features_ND=DIRECTIONS)
    of_0 = 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
    of_1 = 0.5 * math.log(0.25 / 0.16)
    expected = [of_0, of_1, 0.6 * math.log(4), 0.6 * math.log(4)]
    assert contrast(given, 1).tolist() == pytest.approx(expected)
    # The one that is less sure than its neighbor stays behind the one that is surer.
    assert of_0 < of_1
    assert set(cal(given, 3, num_neighbors=1).indices_K.tolist()) == {1, 2, 3}


@pytest.mark.parametrize("count", [1, 3, 10, 59])
def test_equals_a_loop_over_pairs(count: int) -> None:
    signals = random_predictions(60)
    expected = by_pairs(signals, count)
    assert contrast(signals, count).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_single_example_has_no_contrast() -> None:
    assert contrast(random_predictions(1), 10).tolist() == [0.0]
    assert cal(random_predictions(1), 1).indices_K.tolist() == [0]


def test_certain_and_opposite_predictions_stay_finite() -> None:
    # p is 1 and 0 against 0 and 1; a zero counts as the smallest probability.
    expected = (1 - SMALLEST_PROBABILITY) * -math.log(SMALLEST_PROBABILITY)
    assert contrast(of_right(1.0, 0.0), 1).tolist() == pytest.approx([expected] * 2)


def test_nearest_sorts_by_distance_and_then_by_column() -> None:
    rounding = 2.0**-50
    distances = torch.tensor(
        [[3.0, 1.0 + rounding, 1.0, torch.inf, 0.5], [0.0, 0.0, torch.inf, 1e-300, 0.0]],
        dtype=torch.float64,
    )
    assert nearest(distances, 4).tolist() == [[4, 1, 2, 0], [0, 1, 4, 3]]
