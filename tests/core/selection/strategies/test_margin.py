from __future__ import annotations

import pytest
import torch

from lipt.core.selection.strategies.margin import margin, probability_margins
from tests.core.selection.builders import of_probabilities, random_predictions, signals_of


def test_keeps_the_smallest_margin_first_whatever_the_label() -> None:
    # Margins 0.75, 0.125, 0.25 and 0. The second is wrong: by its label it would be negative.
    rows = [[0.875, 0.125, 0.0], [0.5, 0.375, 0.125], [0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]
    given = of_probabilities(rows, [0, 2, 0, 1])
    assert probability_margins(given).tolist() == [0.75, 0.125, 0.25, 0.0]
    assert margin(given, 3).indices_K.tolist() == [3, 1, 2]


def test_equals_two_sorted_probabilities() -> None:
    given = random_predictions(40, 6)
    for row, label, found in zip(
        given.errors_NC.tolist(),
        given.labels_N.tolist(),
        probability_margins(given).tolist(),
        strict=True,
    ):
        row[label] += 1
        *_, second, first = sorted(row)
        assert found == pytest.approx(first - second, abs=1e-6)


def test_one_class_has_no_second_probability() -> None:
    single = signals_of(errors_NC=torch.zeros(3, 1))
    assert probability_margins(single).tolist() == [1.0] * 3
    assert margin(single, 2).indices_K.tolist() == [0, 1]


def test_two_classes_order_as_the_larger_probability_does() -> None:
    given = of_probabilities([[0.875, 0.125], [0.375, 0.625], [0.25, 0.75]], [0, 0, 1])
    assert probability_margins(given).tolist() == [0.75, 0.25, 0.5]
    assert margin(given, 3).indices_K.tolist() == [1, 2, 0]
