"""Class-balanced random: equal shares per class, random within each.

The baseline for strategies that are balanced, so that what they gain by the balance
alone is not counted as theirs.
"""

from __future__ import annotations

from lipt.core.selection.selection import Selection
from lipt.core.selection.strategies.uniform import uniform
from lipt.core.selection.strategy import NOTHING, Balance, Strategy
from lipt.core.signals.signals import Signals


def uniform_per_class(signals: Signals, budget: int, *, seed: int) -> Selection:
    """Draw `budget` examples of one class; the shares of the classes come from the service."""
    return uniform(signals, budget, seed=seed)


STRATEGY = Strategy(
    function=uniform_per_class,
    summary="random examples, equal shares of every class",
    paper="",
    cost="N",
    balance=Balance.ALWAYS,
    needs=NOTHING,
)
