"""Herding on points whose sums are known, and against the definition written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.coordinator.selection.strategies.herding import herding, match_mean
from lipt.coordinator.signals.signals import Signals


def signals_of(features_ND: Tensor) -> Signals:
    num_examples = len(features_ND)
    return Signals(
        torch.zeros(num_examples, 2), features_ND, torch.zeros(num_examples, dtype=torch.int64)
    )


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
    assert herding(line, 2).weights_K.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("num_features", "offset"), [(1, 0.0), (3, 0.0), (16, 0.0), (16, 100.0), (300, 5.0)]
)
def test_equals_the_definition(num_features: int, offset: float) -> None:
    signals = generic(120, num_features, offset)
    expected = by_definition(signals.features_ND, 120)
    assert herding(signals, 120).indices_K.tolist() == expected


@pytest.mark.parametrize("block_bytes", [1, 1000, 5000])
def test_blocks_change_nothing(block_bytes: int) -> None:
    features = generic(300).features_ND
    assert torch.equal(match_mean(features, 90, block_bytes), match_mean(features, 90))


def test_order_of_the_data_does_not_matter() -> None:
    signals = generic(300)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    shuffled = herding(signals.take(order), 60).indices_K
    assert torch.equal(order[shuffled], herding(signals, 60).indices_K)


@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_mean_is_much_nearer_than_of_random_choices(offset: float) -> None:
    # Taking the largest distance in the place of the smallest is worse than random.
    features = generic(1000, offset=offset).features_ND
    generator = torch.Generator().manual_seed(2)
    draws = [torch.randperm(1000, generator=generator)[:100] for _ in range(20)]
    found = mean_error(features, match_mean(features, 100))
    assert found < 0.2 * min(mean_error(features, draw) for draw in draws)


def test_error_falls_as_one_over_the_budget() -> None:
    features = generic(2000, num_features=4).features_ND
    chosen = match_mean(features, 320)
    scaled = [budget * mean_error(features, chosen[:budget]) for budget in (20, 80, 320)]
    # Of random choices this would double with every step.
    assert max(scaled) < 3 * min(scaled) + 1


def test_all_equal_examples_are_taken_in_order() -> None:
    for num_features in (1, 16, 67):
        same = generic(1, num_features, offset=3.0).take(torch.zeros(500, dtype=torch.int64))
        assert herding(same, 500).indices_K.tolist() == list(range(500))


def test_of_copies_the_lowest_ids_are_taken() -> None:
    signals = generic(40)
    once = herding(signals, 40).indices_K[0]
    copies = herding(signals.take(torch.arange(40).repeat(3)), 120).indices_K.tolist()
    assert copies[0] == once
    for first in range(40):
        ids = [position for position in copies if position % 40 == first]
        assert ids == sorted(ids)


def test_single_example() -> None:
    assert herding(generic(1), 1).indices_K.tolist() == [0]


def test_half_precision_is_read_exactly() -> None:
    half = signals_of((generic(100).features_ND * 300).half())
    expected = herding(half.take(torch.arange(100)), 30).indices_K
    assert torch.equal(herding(half, 30).indices_K, expected)
