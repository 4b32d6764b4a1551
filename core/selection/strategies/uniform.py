"""Uniform: a plain random subset, the baseline that every other strategy has to beat.

Random subsets are strong: ResNet-18 on 10% of CIFAR-10 reaches 79-84% at equal
optimizer steps (Zheng et al. 2023, arXiv:2210.15809).
"""

from __future__ import annotations

import torch

from lipt.common.determinism import derive_generator
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategy import NOTHING, Balance, Strategy
from lipt.core.signals.signals import Signals


def uniform(signals: Signals, budget: int, *, seed: int) -> Selection:
    """Draw `budget` examples without replacement, all equally likely."""
    order_N = torch.randperm(len(signals), generator=derive_generator(seed, "uniform"))
    return unweighted(order_N[:budget])


STRATEGY = Strategy(
    function=uniform,
    summary="random examples",
    paper="",
    cost="N",
    balance=Balance.NEVER,
    needs=NOTHING,
)
