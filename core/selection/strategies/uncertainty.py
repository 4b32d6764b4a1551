"""Uncertainty sampling: entropy, margin and least confidence of a model's probabilities.

All three are the same way round balanced and not. DeepCore's unbalanced entropy keeps the most
certain examples (mean entropy 0.20 of what it selects, against 1.88), and its least confidence
ranks by logits, which say nothing about confidence: shifting them changes the largest.

The errors are what is kept of the softmax. They may be float16, and too many for a copy
in float32, so every score is computed a block of rows at a time.

Shapes: N examples, B of a block, C classes, K budget.
Source: Coleman et al. 2020 (arXiv:1906.11829).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategy import CLASSES, Strategy
from lipt.core.signals.signals import Signals, probabilities_of

_PAPER = (
    'Coleman et al. 2020, "Selection via Proxy: Efficient Data Selection for Deep Learning" '
    "(arXiv:1906.11829)"
)
# Probabilities, and what a score makes of them, in float32 and float64.
_BYTES_PER_CLASS = 24


def score_probabilities(signals: Signals, score: Callable[[Tensor], Tensor]) -> Tensor:
    """A score of every example's probabilities, row by row of B x C; N float32."""
    errors_NC, labels_N = signals.errors_NC, signals.labels_N
    scores_N = torch.empty(len(signals), device=errors_NC.device)
    for rows in row_blocks(len(signals), errors_NC.shape[1] * _BYTES_PER_CLASS):
        # Half precision may have rounded errors beyond what a softmax can be.
        probabilities_BC = probabilities_of(errors_NC[rows], labels_N[rows]).clamp_(0, 1)
        scores_N[rows] = score(probabilities_BC).float()
    return scores_N


def entropy(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the largest entropy, most uncertain first."""
    return keep_largest(entropies(signals), budget)


def entropies(signals: Signals) -> Tensor:
    """-sum_c p_c log p_c in nats, from 0 (certain) to log C; N."""

    def entropies_of(probabilities_BC: Tensor) -> Tensor:
        parts_BC: Tensor = torch.special.entr(probabilities_BC)
        return parts_BC.sum(dim=-1, dtype=torch.float64)

    return score_probabilities(signals, entropies_of)


def margin(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest margin, most uncertain first."""
    return keep_largest(-probability_margins(signals), budget)


def probability_margins(signals: Signals) -> Tensor:
    """The largest probability minus the second largest, in [0, 1]; N.

    A single class has no second: its margin is its probability.
    """

    def margins_of(probabilities_BC: Tensor) -> Tensor:
        if probabilities_BC.shape[1] == 1:
            return probabilities_BC[:, 0]
        top_B2 = probabilities_BC.topk(2, dim=-1).values
        return top_B2[:, 0] - top_B2[:, 1]

    return score_probabilities(signals, margins_of)


def least_confidence(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest confidence, most uncertain first."""
    return keep_largest(-confidences(signals), budget)


def confidences(signals: Signals) -> Tensor:
    """The probability of the most likely class, in [1/C, 1]; N."""
    return score_probabilities(signals, lambda probabilities_BC: probabilities_BC.amax(dim=-1))


ENTROPY = Strategy(
    function=entropy,
    summary="most uncertain: largest entropy of the probabilities",
    paper=_PAPER,
    cost="N C",
    kinds=CLASSES,
)
MARGIN = Strategy(
    function=margin,
    summary="most uncertain: smallest margin between the two largest probabilities",
    paper=_PAPER,
    cost="N C",
    kinds=CLASSES,
)
LEAST_CONFIDENCE = Strategy(
    function=least_confidence,
    summary="most uncertain: smallest probability of the most likely class",
    paper=_PAPER,
    cost="N C",
    kinds=CLASSES,
)
