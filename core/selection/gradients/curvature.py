"""Curvature: the diagonal of the last layer's Hessian, averaged over its rows and its columns.

Cross-entropy's Hessian by the last layer is mean_i (diag(p_i) - p_i p_i^T) (x) h_i h_i^T, with
the 1 of the bias in h_i. So its diagonal is mean_i p_ic (1 - p_ic) h_if^2 exactly: nothing
has to be estimated by probes. Its means over features and over classes need a sum of C and
one of F numbers an example, and the diagonal itself, C x F, is never made. Of labels
with chances of their own it is the same sum; the squared error of numbers bends by 1 everywhere.

Shapes: N examples, B of a block, C classes, F features, with the 1 of the bias.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.common.targets.kinds import TargetKind
from lipt.core.selection.gradients.vectors import CACHED_BYTES, with_bias
from lipt.core.signals.signals import Signals


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
