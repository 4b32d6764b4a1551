"""Herding on points whose sums are known, and against the definition written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.core.selection.strategies.herding import herding
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import random_subsets, signals_of


def generic(num_examples: int, num_features: int = 16, offset: float = 0.0) -> Signals:
    generator = torch.Generator().manual_seed(0)
    return signals_of(torch.randn(num_examples, num_features, generator=generator) + offset)


def by_definition(features_ND: Tensor, budget: int) -> list[int]:
    """argmin |(i + 1) mu - sum_S - x|, in float64."""
    rows = features_ND.double()
    mean, total = rows.mean(dim=0), torch.zeros_like(rows[0])
    chosen: list[int] = []
    for pick in range(budget):
        away = ((pick + 1) * mean - total - rows).norm(dim=1)
        away[chosen] = torch.inf
        chosen.append(int(away.argmin()))
        total += rows[chosen[-1]]
    return chosen


def mean_error(features_ND: Tensor, chosen: Tensor) -> float:
    return float((features_ND[chosen].mean(dim=0) - features_ND.mean(dim=0)).norm())


def test_points_of_a_line() -> None:
    # The mean is 4. First 4 itself; to 2 * 4 - 4 = 4 then 3 and 5 are equally near: 3 by its
    # id; 12 - 7 = 5 is there; 16 - 12 = 4 is 3 from 1 and from 7: 1 by its id.
    line = signals_of(torch.tensor([[1.0], [3.0], [4.0], [7.0], [5.0]]))
    assert herding(line, 5).indices_K.tolist() == [2, 1, 4, 0, 3]


@pytest.mark.parametrize(
    ("num_features", "offset"), [(1, 0.0), (3, 0.0), (16, 0.0), (16, 100.0), (300, 5.0)]
)
def test_equals_the_definition(num_features: int, offset: float) -> None:
    signals = generic(120, num_features, offset)
    expected = by_definition(signals.features_ND, 120)
    assert herding(signals, 120).indices_K.tolist() == expected


@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_mean_is_much_nearer_than_of_random_choices(offset: float) -> None:
    # Taking the largest distance in the place of the smallest is worse than random.
    signals = generic(1000, offset=offset)
    features = signals.features_ND
    found = mean_error(features, herding(signals, 100).indices_K)
    assert found < 0.2 * min(mean_error(features, drawn) for drawn in random_subsets(1000, 100))


def test_error_falls_as_one_over_the_budget() -> None:
    signals = generic(2000, num_features=4)
    features, chosen = signals.features_ND, herding(signals, 320).indices_K
    scaled = [budget * mean_error(features, chosen[:budget]) for budget in (20, 80, 320)]
    # Of random choices this would double with every step.
    assert max(scaled) < 3 * min(scaled) + 1


def test_of_copies_the_lowest_ids_are_taken() -> None:
    signals = generic(40)
    once = herding(signals, 40).indices_K[0]
    copies = herding(signals.take(torch.arange(40).repeat(3)), 120).indices_K.tolist()
    assert copies[0] == once
    for first in range(40):
        ids = [position for position in copies if position % 40 == first]
        assert ids == sorted(ids)
