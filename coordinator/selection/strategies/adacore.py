"""AdaCore: CRAIG on gradients preconditioned by the Hessian's diagonal.

Dividing each gradient by the curvature makes examples alike whose Newton steps are alike.
The diagonal is an exponentially averaged Hutchinson estimate over batches of all examples.
Such an estimate is noisy, and a gradient divided by it is no outer product any more. So it
is factored into a curvature per class and one per feature, from its row and column means
as Adafactor does it: e_i and h_i are divided by them, and CRAIG runs as it is. The means
also take out most of the noise; the paper takes the root of averaged squares instead,
which keeps the noise's variance in.

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

from lipt.coordinator.selection.gradients.curvature import averaged_diagonal
from lipt.coordinator.selection.gradients.vectors import with_bias
from lipt.coordinator.selection.selection import Selection
from lipt.coordinator.selection.solvers.stochastic import DEFAULT_EPSILON
from lipt.coordinator.selection.strategies.common_options import Epsilon, Precision, Solver
from lipt.coordinator.selection.strategies.craig import craig
from lipt.coordinator.selection.strategy import Strategy
from lipt.coordinator.signals.blocks import row_blocks
from lipt.coordinator.signals.signals import Signals


def adacore(
    signals: Signals,
    budget: int,
    *,
    seed: int,
    solver: Solver = "auto",
    precision: Precision = "auto",
    epsilon: Epsilon = DEFAULT_EPSILON,
) -> Selection:
    """Keep the examples whose preconditioned gradients are nearest to all others'.

    The signals are those of `precondition`, the weights those of `craig`.
    """
    return craig(signals, budget, seed=seed, solver=solver, precision=precision, epsilon=epsilon)


def precondition(
    signals: Signals,
    *,
    seed: int,
    decay: Annotated[float, Field(ge=0, lt=1), "how much of the average each batch leaves"] = 0.999,
    damping: Annotated[float, Field(gt=0), "added to curvatures, as a share of their mean"] = 0.01,
) -> Signals:
    """Signals whose gradients are divided by the Hessian's factored diagonal.

    Damping keeps what hardly bends the loss (a feature that is nearly always 0) from being
    blown up.

    Returns:
        Errors and features in their own types, the bias as one more feature.
    """
    class_factors_C, feature_factors_F = factored(
        averaged_diagonal(signals, decay=decay, seed=seed)
    )
    features_NF = signals.features_ND.new_empty(len(signals), len(feature_factors_F))
    errors_NC = torch.empty_like(signals.errors_NC)
    for rows in row_blocks(len(signals), 8 * (len(class_factors_C) + len(feature_factors_F))):
        errors_NC[rows] = signals.errors_NC[rows] / (class_factors_C + damping)
        features_BF = with_bias(signals.features_ND[rows], float(signals.has_bias))
        features_NF[rows] = features_BF / (feature_factors_F + damping)
    return replace(signals, errors_NC=errors_NC, features_ND=features_NF, has_bias=False)


def factored(diagonal_CF: Tensor) -> tuple[Tensor, Tensor]:
    """Curvature per class and per feature, each relative to its mean: C and F.

    Their outer product times the mean of the diagonal is the diagonal, if that has rank
    one. Distances are compared with each other only, so the mean is left out.
    """
    return _relative(diagonal_CF.mean(dim=1)), _relative(diagonal_CF.mean(dim=0))


def _relative(curvatures_n: Tensor) -> Tensor:
    """Relative to the mean, negative estimates as 0; ones where there is no curvature at all."""
    positive_n = curvatures_n.clamp(min=0)
    mean = positive_n.mean()
    return positive_n / mean if mean > 0 else torch.ones_like(positive_n)


STRATEGY = Strategy(
    function=adacore,
    summary="craig on gradients divided by an estimate of the Hessian's diagonal",
    paper=(
        'Pooladzandi et al. 2022, "Adaptive Second Order Coresets for Data-efficient Machine '
        'Learning" (arXiv:2207.13887)'
    ),
    cost="N^2 (C + d)",
    returns_weights=True,
    prepare=precondition,
)
