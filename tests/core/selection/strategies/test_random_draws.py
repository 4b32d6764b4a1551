from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from lipt.core.selection.strategies.random_draws import default_cells, stratified, uniform
from lipt.core.signals.signals import Signals, labels_only
from tests.core.selection.builders import signals_of

Shares = Literal["equal", "proportional"]


def bundled(*sizes: int) -> tuple[Signals, Tensor]:
    """One bundle of directions after another, of these sizes, and who is in which."""
    kinds_N = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    generator = torch.Generator().manual_seed(0)
    features_ND = torch.eye(len(sizes))[kinds_N]
    features_ND = features_ND + 0.05 * torch.randn(features_ND.shape, generator=generator)
    return signals_of(features_ND), kinds_N


@pytest.mark.parametrize(
    ("shares", "budget", "expected"),
    [
        ("equal", 12, [4, 4, 4]),
        ("equal", 30, [6, 12, 12]),  # what the small one lacks is shared
        ("proportional", 20, [2, 8, 10]),  # 60 in all: one of three
        ("proportional", 7, [1, 3, 3]),  # 0.7, 2.8, 3.5: two left, for remainders .8 and .7
    ],
)
def test_shares_by_hand(shares: Shares, budget: int, expected: list[int]) -> None:
    signals, kinds_N = bundled(6, 24, 30)
    for seed in range(5):
        chosen = stratified(signals, budget, num_cells=3, shares=shares, seed=seed).indices_K
        assert kinds_N[chosen].bincount().tolist() == expected


@pytest.mark.parametrize(
    ("budget", "expected"), [(1, 1), (2, 1), (3, 2), (500, 250), (512, 256), (10**6, 256)]
)
def test_cells_grow_with_the_budget_to_a_limit(budget: int, expected: int) -> None:
    assert default_cells(budget) == expected


LABELS = labels_only(torch.zeros(10, dtype=torch.int64))


def test_every_example_is_equally_likely() -> None:
    # 2,000 draws of 3 from 10: each is in 600, with deviation sqrt(2000 * 0.3 * 0.7) = 20.5.
    drawn = torch.cat([uniform(LABELS, 3, seed=seed).indices_K for seed in range(2000)])
    assert ((drawn.bincount(minlength=10) - 600).abs() < 92).all()
