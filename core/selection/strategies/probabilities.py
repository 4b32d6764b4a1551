"""Scores of probabilities, in blocks: how sure the model is of its answer.

The errors are what is kept of the softmax. They may be float16, and too many for a copy
in float32, so every score is computed a block of rows at a time.

Shapes: N examples, B of a block, C classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.signals.signals import Signals, probabilities_of

# Whose scores of uncertainty these are: entropy, margin and least confidence.
PROXY_PAPER = (
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
