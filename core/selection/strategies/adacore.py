"""AdaCore: CRAIG on gradients preconditioned by the Hessian's diagonal.

Dividing each gradient by the curvature makes examples alike whose Newton steps are alike.
The paper estimates the diagonal by Hutchinson's probes, averaged over batches. Of the last
layer it is known in closed form, mean_i p_ic (1 - p_ic) h_if^2, so it is computed: an
estimate of one probe per batch is mostly noise until there are thousands of batches.

A gradient divided by it is no outer product any more. So the diagonal is factored into a
curvature per class and one per feature, its row and column means, as Adafactor factors
squared gradients: e_i and h_i are divided by them, and CRAIG runs as it is.

Of labels with probabilities of their own the diagonal is the same sum; the squared error of
numbers bends by 1 everywhere.

Shapes: N examples, C classes, D features, F features with the 1 of the bias, K budget.
Source: Pooladzandi et al. 2022 (arXiv:2207.13887); Shazeer and Stern 2018, "Adafactor"
(arXiv:1804.04235).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.common.targets.kinds import TargetKind
from lipt.core.selection.gradients.vectors import CACHED_BYTES, with_bias
from lipt.core.selection.selection import Selection
from lipt.core.selection.solvers.greedy import DEFAULT_EPSILON
from lipt.core.selection.strategies.common_options import (
    Epsilon,
    Partitions,
    Precision,
    Solver,
)
from lipt.core.selection.strategies.craig import craig
from lipt.core.selection.strategy import Strategy
from lipt.core.signals.signals import Signals


def adacore(
    signals: Signals,
    budget: int,
    *,
    seed: int,
    solver: Solver = "auto",
    precision: Precision = "auto",
    epsilon: Epsilon = DEFAULT_EPSILON,
    partitions: Partitions = 0,
) -> Selection:
    """Keep the examples whose preconditioned gradients are nearest to all others'.

    The signals are those of `precondition`, the weights those of `craig`.
    """
    return craig(
        signals,
        budget,
        seed=seed,
        solver=solver,
        precision=precision,
        epsilon=epsilon,
        partitions=partitions,
    )


def precondition(
    signals: Signals,
    *,
    damping: Annotated[float, Field(gt=0), "added to curvatures, as a share of their mean"] = 0.01,
) -> Signals:
    """Signals whose gradients are divided by the Hessian's factored diagonal.

    Damping keeps what hardly bends the loss (a feature that is nearly always 0) from being
    blown up.

    Returns:
        Errors and features in their own types, the bias as one more feature.
    """
    by_class_C, by_feature_F = (_relative(means_n) for means_n in mean_curvatures(signals))
    features_NF = signals.features_ND.new_empty(len(signals), len(by_feature_F))
    errors_NC = torch.empty_like(signals.errors_NC)
    for rows in row_blocks(len(signals), 16 * (len(by_class_C) + len(by_feature_F))):
        errors_NC[rows] = signals.errors_NC[rows] / (by_class_C + damping)
        features_BF = with_bias(signals.features_ND[rows], float(signals.has_bias))
        features_NF[rows] = features_BF / (by_feature_F + damping)
    return replace(signals, errors_NC=errors_NC, features_ND=features_NF, has_bias=False)


def _relative(curvatures_n: Tensor) -> Tensor:
    """Relative to their mean; ones where there is no curvature at all.

    Distances are compared with each other only, so what all gradients are divided by is
    left out.
    """
    mean = curvatures_n.mean()
    return curvatures_n / mean if mean > 0 else torch.ones_like(curvatures_n)


def mean_curvatures(signals: Signals) -> tuple[Tensor, Tensor]:
    """The means of the Hessian's diagonal over features, by class, and over classes, by feature.

    Summed in float64, block after block: the same signals give the same curvatures.

    Args:
        signals: of all examples, in any precision.

    Returns:
        C and F float64, none of them negative.
    """
    num_examples, num_classes = signals.errors_NC.shape
    num_features = signals.features_ND.shape[1] + int(signals.has_bias)
    device = signals.features_ND.device
    by_class_C = torch.zeros(num_classes, dtype=torch.float64, device=device)
    by_feature_F = torch.zeros(num_features, dtype=torch.float64, device=device)
    row_bytes = 8 * (num_classes + num_features)
    for rows in row_blocks(num_examples, row_bytes, CACHED_BYTES):
        # |e| is p, or 1 - p of the label, with all its digits: p (1 - p) either way. Heads of
        # least squares have larger ones.
        shares_BC = signals.errors_NC[rows].double().abs().clamp_(max=1.0)
        spreads_BC = shares_BC * (1 - shares_BC)
        if signals.kind is TargetKind.NUMBER:
            spreads_BC.fill_(1.0)
        squares_BF = with_bias(signals.features_ND[rows].double(), float(signals.has_bias)).square()
        by_class_C += squares_BF.mean(dim=1) @ spreads_BC
        by_feature_F += spreads_BC.mean(dim=1) @ squares_BF
    return by_class_C / num_examples, by_feature_F / num_examples


STRATEGY = Strategy(
    function=adacore,
    summary="craig on gradients divided by the diagonal of the last layer's Hessian",
    paper=(
        'Pooladzandi et al. 2022, "Adaptive Second Order Coresets for Data-efficient Machine '
        'Learning" (arXiv:2207.13887)'
    ),
    cost="N^2 (C + d)",
    returns_weights=True,
    prepare=precondition,
    revision=1,
)
