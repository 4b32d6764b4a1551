"""Uniform and class-balanced random: the baselines that every other strategy has to beat.

Random subsets are strong: ResNet-18 on 10% of CIFAR-10 reaches 79-84% at equal
optimizer steps (Zheng et al. 2023, arXiv:2210.15809). Strategies that are balanced are compared
with the balanced one, so that what they gain by the balance alone is not counted as theirs.
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


def uniform_per_class(signals: Signals, budget: int, *, seed: int) -> Selection:
    """Draw `budget` examples of one class; the shares of the classes come from the service."""
    return uniform(signals, budget, seed=seed)


UNIFORM = Strategy(
    function=uniform,
    summary="random examples",
    paper="",
    cost="N",
    balance=Balance.NEVER,
    needs=NOTHING,
)
UNIFORM_PER_CLASS = Strategy(
    function=uniform_per_class,
    summary="random examples, equal shares of every class",
    paper="",
    cost="N",
    balance=Balance.ALWAYS,
    needs=NOTHING,
)
