"""Least confidence: keep the examples whose most likely class is the least likely.

By probabilities. Logits, by which DeepCore ranks, have another largest value for every
example that is shifted, and say nothing about confidence.

Shapes: N examples, B of a block, C classes, K budget.
Source: Coleman et al. 2020 (arXiv:1906.11829).
"""

from __future__ import annotations

from torch import Tensor

from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategies.probabilities import PROXY_PAPER, score_probabilities
from lipt.core.selection.strategy import CLASSES, Strategy
from lipt.core.signals.signals import Signals


def least_confidence(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest confidence, most uncertain first."""
    return keep_largest(-confidences(signals), budget)


def confidences(signals: Signals) -> Tensor:
    """The probability of the most likely class, in [1/C, 1]; N."""
    return score_probabilities(signals, lambda probabilities_BC: probabilities_BC.amax(dim=-1))


STRATEGY = Strategy(
    function=least_confidence,
    summary="most uncertain: smallest probability of the most likely class",
    paper=PROXY_PAPER,
    cost="N C",
    kinds=CLASSES,
)
