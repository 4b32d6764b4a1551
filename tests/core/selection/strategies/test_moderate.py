"""Moderate on points of a line, whose centers and ranks are known, and against the definition."""

from __future__ import annotations

import pytest
import torch

from lipt.core.selection.strategies.moderate import (
    center_distances,
    in_the_middle,
    moderate,
)
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import random_predictions, signals_of


def line(positions: list[float], labels: list[int] | None = None) -> Signals:
    return signals_of(torch.tensor(positions)[:, None], labels=labels)


def by_definition(signals: Signals, budget: int) -> list[int]:
    distances = {}
    for label in signals.labels_N.unique().tolist():
        ids = torch.nonzero(signals.labels_N == label).flatten()
        rows = signals.features_ND[ids].double()
        middle = rows.quantile(0.5, dim=0)
        distances |= dict(zip(ids.tolist(), (rows - middle).norm(dim=1).tolist(), strict=True))
    # The middle two of an even number are as far from the median between them.
    order = sorted(distances, key=lambda i: (round(distances[i], 6), i))
    start = round((len(signals) - budget) / 2)
    return order[start : start + budget]


def test_the_center_is_the_median_of_each_coordinate() -> None:
    # The medians are 1 and 2, which no example has together.
    given = signals_of(torch.tensor([[0.0, 2.0], [1.0, 7.0], [11.0, 0.0]]))
    expected = [1.0, 5.0, (10**2 + 2**2) ** 0.5]
    assert center_distances(given).tolist() == pytest.approx(expected)


def test_the_window_is_in_the_middle_and_as_wide_as_the_budget() -> None:
    values = torch.arange(10.0)
    assert in_the_middle(values, 4).tolist() == [3, 4, 5, 6]
    # In the middle it would begin at rank 3.5, or 4.5: it begins at the even rank, 4.
    assert in_the_middle(values, 3).tolist() == [4, 5, 6]
    assert in_the_middle(values, 1).tolist() == [4]
    assert in_the_middle(values, 10).tolist() == list(range(10))


def test_of_equal_distances_the_first_are_kept_at_both_edges() -> None:
    # Ranks 2 to 4 of 7: one of the three 1s, the 2, and one of the three 3s.
    values = torch.tensor([3.0, 1.0, 1.0, 2.0, 1.0, 3.0, 3.0])
    assert in_the_middle(values, 3).tolist() == [1, 3, 0]
    assert in_the_middle(torch.ones(7), 3).tolist() == [0, 1, 2]


def test_equals_the_definition() -> None:
    for num_examples in (1, 2, 10, 101):
        signals = random_predictions(num_examples, 3, 5)
        for budget in {1, num_examples // 3 + 1, num_examples}:
            expected = by_definition(signals, budget)
            assert moderate(signals, budget).indices_K.tolist() == expected
