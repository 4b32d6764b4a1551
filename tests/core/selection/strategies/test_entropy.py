from __future__ import annotations

import math

import pytest
import torch

from lipt.core.selection.strategies.entropy import entropies, entropy
from tests.core.selection.builders import of_probabilities, random_predictions, signals_of


def test_keeps_the_most_spread_probabilities_first() -> None:
    # In bits: 0, 1, 1.5 and log2 3; whatever the label is.
    rows = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]
    given = of_probabilities(rows, [0, 2, 1, 0])
    bits = (entropies(given) / math.log(2)).tolist()
    assert bits == pytest.approx([0.0, 1.0, 1.5, math.log2(3)], abs=1e-6)
    assert entropy(given, 3).indices_K.tolist() == [3, 2, 1]


def test_equals_the_sum_written_out() -> None:
    given = random_predictions(40, 6)
    for row, label, found in zip(
        given.errors_NC.tolist(), given.labels_N.tolist(), entropies(given).tolist(), strict=True
    ):
        row[label] += 1
        assert found == pytest.approx(-sum(p * math.log(p) for p in row), abs=1e-6)


def test_one_class_and_one_example_are_certain() -> None:
    single = signals_of(errors_NC=torch.zeros(3, 1))
    assert entropies(single).tolist() == [0.0] * 3
    assert entropy(single, 2).indices_K.tolist() == [0, 1]
    assert entropy(of_probabilities([[0.5, 0.5]], [1]), 1).indices_K.tolist() == [0]
