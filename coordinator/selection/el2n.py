"""EL2N: keep the examples that the model gets most wrong.

Shapes: N examples, C classes, K budget.
Source: Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075).
"""

from __future__ import annotations

import torch

from lipt.coordinator.selection.ranking import keep_largest
from lipt.coordinator.selection.selection import Selection
from lipt.coordinator.signals import Signals


def el2n(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the largest error norm |softmax - onehot|, worst first."""
    return keep_largest(torch.linalg.vector_norm(signals.errors_NC, dim=-1), budget)
