"""EL2N: keep the examples that the model gets most wrong.

The paper averages the norm over several runs. A run of LiPT has learners in their place:
`models=learners` takes the mean over those that are in.

Shapes: N examples, C classes, L learners, K budget.
Source: Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075).
"""

from __future__ import annotations

from typing import Literal

import torch

from lipt.coordinator.selection.selection import Selection, keep_largest
from lipt.coordinator.signals.moments import mean_over_learners, require_dynamics
from lipt.coordinator.signals.signals import Signals


def el2n(
    signals: Signals, budget: int, *, models: Literal["merged", "learners"] = "merged"
) -> Selection:
    """Keep the `budget` examples with the largest error norm |softmax - onehot|, worst first.

    Args:
        signals: with errors, or with dynamics where `models` is "learners".
        budget: K.
        models: whose errors: of the weights that the subset is selected on, or the mean
            norm over the run's learners.

    Raises:
        SignalsError: `models` is "learners" and the signals have no dynamics.
    """
    if models == "learners":
        norms_NL = require_dynamics(signals, "el2n with models=learners").error_norms_NL
        return keep_largest(mean_over_learners(norms_NL), budget)
    # The dtype is the sum's: half-precision errors are widened on the way, not copied.
    norms_N = torch.linalg.vector_norm(signals.errors_NC, dim=-1, dtype=torch.float32)
    return keep_largest(norms_N, budget)
