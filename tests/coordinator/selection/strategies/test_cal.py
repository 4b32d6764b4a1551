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


def line(positions: list[float], probabilities: list[float]) -> Signals:
    """Two classes, all labels 0: p of the right class gives e = (p - 1, 1 - p)."""
    right_N = torch.tensor(probabilities)
    return Signals(
        errors_NC=torch.stack([right_N - 1, 1 - right_N], dim=1),
        features_ND=torch.tensor(positions)[:, None],
        labels_N=torch.zeros(len(right_N), dtype=torch.int64),
    )


def generic(num_examples: int, num_classes: int = 4) -> Signals:
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.arange(num_examples) % num_classes
    errors_NC = torch.randn(num_examples, num_classes, generator=generator).softmax(dim=1)
    errors_NC[torch.arange(num_examples), labels_N] -= 1
    return Signals(errors_NC, torch.randn(num_examples, 5, generator=generator), labels_N)


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
    given = line([0, 1, 10, 11], [0.5, 0.8, 0.8, 0.2])
    scores = contrast(given, 1)
    assert scores.tolist() == pytest.approx([0.15 * math.log(4)] * 2 + [0.6 * math.log(4)] * 2)
    chosen = cal(given, 3, num_neighbors=1)
    assert chosen.indices_K.tolist() == [2, 3, 0]
    assert chosen.weights_K.tolist() == [1.0] * 3


@pytest.mark.parametrize("count", [1, 3, 10, 59])
def test_equals_a_loop_over_pairs(count: int) -> None:
    signals = generic(60)
    assert contrast(signals, count).tolist() == pytest.approx(by_pairs(signals, count), rel=1e-5)


def test_fewer_neighbors_where_there_are_fewer_examples() -> None:
    signals = generic(6)
    assert torch.equal(contrast(signals, 10), contrast(signals, 5))


def test_a_single_example_has_no_contrast() -> None:
    assert contrast(generic(1), 10).tolist() == [0.0]
    assert cal(generic(1), 1).indices_K.tolist() == [0]


def test_certain_and_opposite_predictions_stay_finite() -> None:
    # p is 1 and 0 against 0 and 1; a zero counts as the smallest probability.
    expected = (1 - SMALLEST_PROBABILITY) * -math.log(SMALLEST_PROBABILITY)
    assert contrast(line([0, 1], [1.0, 0.0]), 1).tolist() == pytest.approx([expected] * 2)


@pytest.mark.parametrize("block_bytes", [1, 3000, 20000])
def test_blocks_change_nothing(block_bytes: int) -> None:
    signals = generic(90)
    assert torch.equal(contrast(signals, 10, block_bytes), contrast(signals, 10))


def test_order_of_the_data_does_not_matter() -> None:
    signals = generic(200)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    shuffled = cal(signals.take(order), 40).indices_K
    assert torch.equal(order[shuffled], cal(signals, 40).indices_K)


def test_scores_are_above_those_of_random_choices() -> None:
    signals = generic(300)
    scores = contrast(signals, 10)
    generator = torch.Generator().manual_seed(2)
    draws = [torch.randperm(300, generator=generator)[:30] for _ in range(20)]
    chosen = cal(signals, 30).indices_K
    assert float(scores[chosen].sum()) > max(float(scores[draw].sum()) for draw in draws)


@pytest.mark.parametrize("block_bytes", [1, 10**7])
def test_of_copies_the_lowest_ids_are_the_neighbors(block_bytes: int) -> None:
    base = generic(4)
    copies = Signals(
        base.errors_NC.repeat(25, 1),
        torch.full((100, 7), 1 / 3),
        base.labels_N.repeat(25),
    )
    neighbors = nearest_neighbors(copies, 3, block_bytes).sort(dim=1).values
    assert neighbors[0].tolist() == [1, 2, 3]
    assert neighbors[2].tolist() == [0, 1, 3]
    assert (neighbors[3:] == torch.tensor([0, 1, 2])).all()
    assert cal(copies, 100).indices_K.sort().values.tolist() == list(range(100))


def test_all_equal_examples_are_taken_in_order() -> None:
    same = generic(1).take(torch.zeros(50, dtype=torch.int64))
    assert cal(same, 50).indices_K.tolist() == list(range(50))


def test_nearest_sorts_by_distance_and_then_by_column() -> None:
    rounding = 2.0**-50
    distances = torch.tensor(
        [[3.0, 1.0 + rounding, 1.0, torch.inf, 0.5], [0.0, 0.0, torch.inf, 1e-300, 0.0]],
        dtype=torch.float64,
    )
    assert nearest(distances, 4).tolist() == [[4, 1, 2, 0], [0, 1, 4, 3]]
