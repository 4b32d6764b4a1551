"""Moderate on points of a line, whose centers and medians are known."""

from __future__ import annotations

import torch

from lipt.coordinator.selection.strategies.moderate import center_distances, class_medians, moderate
from lipt.coordinator.signals.signals import Signals
from tests.coordinator.selection.builders import random_predictions, signals_of


def line(positions: list[float], labels: list[int] | None = None) -> Signals:
    return signals_of(torch.tensor(positions)[:, None], labels=labels)


def by_definition(signals: Signals, budget: int) -> list[int]:
    gaps = {}
    for label in signals.labels_N.unique().tolist():
        ids = torch.nonzero(signals.labels_N == label).flatten()
        rows = signals.features_ND[ids].double()
        distances = (rows - rows.mean(dim=0)).norm(dim=1)
        median = torch.quantile(distances, 0.5)
        gaps |= dict(zip(ids.tolist(), (distances - median).abs().tolist(), strict=True))
    # The middle two of an even number tie.
    return sorted(gaps, key=lambda i: (round(gaps[i], 6), i))[:budget]


def test_what_is_kept_is_closest_to_the_median_distance() -> None:
    # The center is 4; distances are 4, 3, 1, 0, 8: their median is 3, the gaps 1, 0, 2, 3, 5.
    given = line([0.0, 1.0, 3.0, 4.0, 12.0])
    # Neither the most typical nor the oddest example, until nothing else is left.
    assert moderate(given, 5).indices_K.tolist() == [1, 0, 2, 3, 4]


def test_the_median_of_an_even_number_is_between_the_middle_two() -> None:
    # Distances from 3 are 3, 2, 0, 5: between 2 and 3 lies 2.5, so both have a gap of 0.5.
    assert moderate(line([0.0, 1.0, 3.0, 8.0]), 4).indices_K.tolist() == [0, 1, 2, 3]


def test_each_class_has_its_own_center_and_median() -> None:
    # Class 2: distances 0, 1, 1 from 1, median 1. Class 5: 0, 10, 10 from 110, median 10.
    given = line([1.0, 110.0, 0.0, 100.0, 2.0, 120.0], [2, 5, 2, 5, 2, 5])
    assert center_distances(given).tolist() == [0, 0, 1, 10, 1, 10]
    assert class_medians(center_distances(given), given.labels_N).tolist() == [1, 10] * 3
    assert moderate(given, 6).indices_K.tolist() == [2, 3, 4, 5, 0, 1]


def test_equals_the_definition() -> None:
    for num_examples in (1, 2, 10, 101):
        signals = random_predictions(num_examples, 3, 5)
        expected = by_definition(signals, num_examples)
        assert moderate(signals, num_examples).indices_K.tolist() == expected
