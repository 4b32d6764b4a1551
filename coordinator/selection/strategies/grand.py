"""GraNd: keep the examples with the largest gradient of their own loss.

By the last layer's parameters the norm is |e| sqrt(1 + |h|^2), exact and free. By all
parameters it is one gradient per example, some hundred times the work.

Shapes: N examples, C classes, D features, K budget.
Source: Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.coordinator.selection.selection import Selection, keep_largest
from lipt.coordinator.signals.signals import Signals


def grand(
    signals: Signals, budget: int, *, parameters: Literal["last_layer", "all"] = "last_layer"
) -> Selection:
    """Keep the `budget` examples with the largest gradient norm, largest first.

    Args:
        signals: with `gradient_norms_N` where `parameters` is "all".
        budget: K.
        parameters: by which parameters the gradient is taken.

    Raises:
        SignalsError: the gradients of all parameters were not computed.
    """
    if parameters == "last_layer":
        return keep_largest(last_layer_norms(signals), budget)
    if signals.gradient_norms_N is None:
        raise SignalsError(
            "grand with parameters=all needs the gradient norms by all parameters, which were not "
            "computed. Compute them first, or use parameters=last_layer."
        )
    return keep_largest(signals.gradient_norms_N, budget)


def last_layer_norms(signals: Signals) -> Tensor:
    """|e_i| sqrt(1 + |h_i|^2): the norm of e_i (x) [h_i, 1], without making it; N.

    A layer without a bias has no 1.
    """
    # The dtype is the sum's: half-precision signals are widened on the way, not copied.
    error_norms_N: Tensor = torch.linalg.vector_norm(signals.errors_NC, dim=-1, dtype=torch.float32)
    feature_norms_N: Tensor = torch.linalg.vector_norm(
        signals.features_ND, dim=-1, dtype=torch.float32
    )
    extended_N = (feature_norms_N.square() + float(signals.has_bias)).sqrt()
    return error_norms_N * extended_N
