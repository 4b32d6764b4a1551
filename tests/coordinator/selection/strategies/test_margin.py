from __future__ import annotations

import pytest
import torch

from lipt.coordinator.selection.registry import find_strategy
from lipt.coordinator.selection.select import select
from lipt.coordinator.selection.strategies.margin import margin, probability_margins
from lipt.coordinator.signals.signals import Signals


def of_probabilities(rows: list[list[float]], labels: list[int]) -> Signals:
    errors_NC, labels_N = torch.tensor(rows), torch.tensor(labels)
    errors_NC[torch.arange(len(labels)), labels_N] -= 1
    return Signals(errors_NC, torch.ones(len(labels), 1), labels_N)


def random_signals(num_examples: int, num_classes: int) -> Signals:
    generator = torch.Generator().manual_seed(1)
    probabilities_NC = (3 * torch.randn(num_examples, num_classes, generator=generator)).softmax(-1)
    labels_N = torch.arange(num_examples) % num_classes
    return of_probabilities(probabilities_NC.tolist(), labels_N.tolist())


def test_keeps_the_smallest_margin_first_whatever_the_label() -> None:
    # Margins 0.75, 0.125, 0.25 and 0. The second is wrong: by its label it would be negative.
    rows = [[0.875, 0.125, 0.0], [0.5, 0.375, 0.125], [0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]
    given = of_probabilities(rows, [0, 2, 0, 1])
    assert probability_margins(given).tolist() == [0.75, 0.125, 0.25, 0.0]
    chosen = margin(given, 3)
    assert chosen.indices_K.tolist() == [3, 1, 2]
    assert chosen.weights_K.tolist() == [1.0] * 3


def test_equals_two_sorted_probabilities() -> None:
    given = random_signals(40, 6)
    for row, label, found in zip(
        given.errors_NC.tolist(),
        given.labels_N.tolist(),
        probability_margins(given).tolist(),
        strict=True,
    ):
        row[label] += 1
        *_, second, first = sorted(row)
        assert found == pytest.approx(first - second, abs=1e-6)


@pytest.mark.parametrize("balanced", [False, True])
def test_what_is_kept_is_less_certain_than_what_is_not(balanced: bool) -> None:
    given = random_signals(300, 10)
    strategy = find_strategy("margin")
    chosen = select(strategy, given, 30, balanced=balanced, seed=0, options={}).indices_K
    scores_N = probability_margins(given)
    kept = torch.zeros(300, dtype=torch.bool)
    kept[chosen] = True
    for label in range(10) if balanced else [None]:
        of_group = given.labels_N == label if balanced else torch.ones(300, dtype=torch.bool)
        assert scores_N[kept & of_group].max() <= scores_N[~kept & of_group].min()


def test_one_class_has_no_second_probability() -> None:
    single = Signals(torch.zeros(3, 1), torch.ones(3, 1), torch.zeros(3, dtype=torch.int64))
    assert probability_margins(single).tolist() == [1.0] * 3
    assert margin(single, 2).indices_K.tolist() == [0, 1]


def test_two_classes_order_as_the_larger_probability_does() -> None:
    given = of_probabilities([[0.875, 0.125], [0.375, 0.625], [0.25, 0.75]], [0, 0, 1])
    assert probability_margins(given).tolist() == [0.75, 0.25, 0.5]
    assert margin(given, 3).indices_K.tolist() == [1, 2, 0]
