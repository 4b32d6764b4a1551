"""Entropy: keep the examples on which the model's probabilities are spread the most.

The same way round balanced and not: DeepCore's unbalanced mode keeps the most certain
ones (mean entropy 0.20 of what it selects, against 1.88).

Shapes: N examples, B of a block, C classes, K budget.
Source: Coleman et al. 2020 (arXiv:1906.11829).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategies.probabilities import PROXY_PAPER, score_probabilities
from lipt.core.selection.strategy import CLASSES, Strategy
from lipt.core.signals.signals import Signals


def entropy(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the largest entropy, most uncertain first."""
    return keep_largest(entropies(signals), budget)


def entropies(signals: Signals) -> Tensor:
    """-sum_c p_c log p_c in nats, from 0 (certain) to log C; N."""

    def entropies_of(probabilities_BC: Tensor) -> Tensor:
        parts_BC: Tensor = torch.special.entr(probabilities_BC)
        return parts_BC.sum(dim=-1, dtype=torch.float64)

    return score_probabilities(signals, entropies_of)


STRATEGY = Strategy(
    function=entropy,
    summary="most uncertain: largest entropy of the probabilities",
    paper=PROXY_PAPER,
    cost="N C",
    kinds=CLASSES,
)
