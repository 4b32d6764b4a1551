"""GraNd: keep the examples with the largest gradient of their own loss.

The paper's score is the mean over ten models, trained from ten initial ones. Here it is that
of one model, theta_p or the caller's own; `pretraining=epochs:1x10` has it as the paper does.

By the last layer's parameters the norm is |e| sqrt(1 + |h|^2), exact and free. By all
parameters it is one gradient per example, some hundred times the work.

Shapes: N examples, C classes, D features, K budget.
Source: Paul et al. 2021 (arXiv:2107.07075).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategies.el2n import error_norms
from lipt.core.selection.strategy import SIGNALS, Need, Strategy
from lipt.core.signals.signals import Signals, given

Parameters = Annotated[
    Literal["last_layer", "all"],
    "which parameters the gradient is taken by; all costs a backward pass",
]


def grand(signals: Signals, budget: int, *, parameters: Parameters = "last_layer") -> Selection:
    """Keep the `budget` examples with the largest gradient norm, largest first."""
    if parameters == "last_layer":
        return keep_largest(signals.mean_over_models(last_layer_norms), budget)
    return keep_largest(signals.mean_over_models(_all_norms), budget)


def last_layer_norms(signals: Signals) -> Tensor:
    """|e_i| sqrt(1 + |h_i|^2): the norm of e_i (x) [h_i, 1], without making it; N.

    A layer without a bias has no 1.
    """
    feature_norms_N: Tensor = torch.linalg.vector_norm(
        signals.features_ND, dim=-1, dtype=torch.float32
    )
    return error_norms(signals) * (feature_norms_N.square() + float(signals.has_bias)).sqrt()


def _all_norms(signals: Signals) -> Tensor:
    return given(signals.gradient_norms_N, "gradient norms")


STRATEGY = Strategy(
    function=grand,
    summary="largest gradient norm, by the last layer or by all parameters",
    paper='Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075)',
    cost="N (C + d)",
    averages=True,
    needs=lambda options: (
        frozenset({Need.GRADIENT_NORMS}) if options["parameters"] == "all" else SIGNALS
    ),
)
