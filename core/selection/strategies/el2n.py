"""EL2N: keep the examples that the model gets most wrong.

The paper averages the norm over several runs. A run of LiPT has learners in their place:
`models=learners` takes the mean over those that are in and were not trained on the example, and
`pretraining=epochs:NxR` that over R models of an ordinary warm-up.

Shapes: N examples, C classes, L learners, K budget.
Source: Paul et al. 2021 (arXiv:2107.07075).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategy import DYNAMICS, SIGNALS, Strategy
from lipt.core.signals.dynamics import mean_over_learners
from lipt.core.signals.signals import Signals

Models = Annotated[
    Literal["merged", "learners"],
    "error norm of the weights that are selected on, or its mean over the learners",
]


def el2n(signals: Signals, budget: int, *, models: Models = "merged") -> Selection:
    """Keep the `budget` examples with the largest error norm |softmax - onehot|, worst first."""
    if models == "learners":
        dynamics = signals.learners()
        norms_N = mean_over_learners(dynamics.error_norms_NL, dynamics.counted_NL)
        return keep_largest(norms_N, budget)
    return keep_largest(signals.mean_over_models(error_norms), budget)


def error_norms(signals: Signals) -> Tensor:
    """|e_i|; N float32."""
    # The dtype is the sum's: half-precision errors are widened on the way, not copied.
    norms_N: Tensor = torch.linalg.vector_norm(signals.errors_NC, dim=-1, dtype=torch.float32)
    return norms_N


STRATEGY = Strategy(
    function=el2n,
    summary="largest error norm |softmax - onehot|, of the merged model or of the learners",
    paper='Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075)',
    cost="N C",
    averages=True,
    needs=lambda options: DYNAMICS if options["models"] == "learners" else SIGNALS,
    revision=1,
)
