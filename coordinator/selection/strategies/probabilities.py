"""Probabilities from errors: p = e + onehot, in blocks, for scores of how sure the model is.

The errors are what is kept of the softmax. They may be float16, and too many for a copy
in float32, so every score is computed a block of rows at a time.

Shapes: N examples, B of a block, C classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipt.coordinator.signals.blocks import BLOCK_BYTES, row_blocks
from lipt.coordinator.signals.signals import Signals

# Whose scores of uncertainty these are: entropy, margin and least confidence.
PROXY_PAPER = (
    'Coleman et al. 2020, "Selection via Proxy: Efficient Data Selection for Deep Learning" '
    "(arXiv:1906.11829)"
)
# Probabilities, and what a score makes of them, in float32 and float64.
_BYTES_PER_CLASS = 24


def probabilities_of(errors_BC: Tensor, labels_B: Tensor) -> Tensor:
    """The softmax, float32, within [0, 1] also where half precision rounded the errors.

    Args:
        errors_BC: softmax - onehot, any floating type. Not modified.
        labels_B: int64.
    """
    probabilities_BC = errors_BC.to(torch.float32, copy=True)
    probabilities_BC[torch.arange(len(labels_B), device=labels_B.device), labels_B] += 1
    return probabilities_BC.clamp_(0, 1)


def score_probabilities(
    signals: Signals, score: Callable[[Tensor], Tensor], *, block_bytes: int = BLOCK_BYTES
) -> Tensor:
    """A score of every example's probabilities, float32; N.

    Args:
        signals: with errors, in float32 or float16.
        score: from B x C probabilities to B scores, one row at a time.
        block_bytes: what a block may take; the scores do not depend on it.
    """
    errors_NC, labels_N = signals.errors_NC, signals.labels_N
    scores_N = torch.empty(len(signals), device=errors_NC.device)
    for rows in row_blocks(len(signals), errors_NC.shape[1] * _BYTES_PER_CLASS, block_bytes):
        scores_N[rows] = score(probabilities_of(errors_NC[rows], labels_N[rows])).float()
    return scores_N
