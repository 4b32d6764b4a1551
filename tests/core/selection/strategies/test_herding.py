"""Herding on points whose sums are known, and against the definition written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.core.selection.strategies.herding import herding
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import signals_of


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


def test_of_copies_the_lowest_ids_are_taken() -> None:
    signals = generic(40)
    once = herding(signals, 40).indices_K[0]
    copies = herding(signals.take(torch.arange(40).repeat(3)), 120).indices_K.tolist()
    assert copies[0] == once
    for first in range(40):
        ids = [position for position in copies if position % 40 == first]
        assert ids == sorted(ids)
