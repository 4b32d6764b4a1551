"""Herding: choose so that the mean of what is chosen stays at the mean of all.

Pick i is the example that brings the sum of the chosen nearest to i times the mean: the chosen
mean comes nearer like 1 / i, against 1 / sqrt(i) for random picks.

Shapes: N examples, D features, K budget.
Source: Welling 2009, "Herding Dynamical Weights to Learn"; Chen, Welling and Smola 2010,
"Super-Samples from Kernel Herding" (arXiv:1203.3472); here without replacement.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategy import FEATURES, Strategy
from lipt.core.signals.signals import Signals

# Of the squared norms. Added to what is compared, it makes the grid of float32 coarser
# than the rounding of float64: equal examples tie, whatever their last bits.
_OFFSET = 1e-6
# Twice float32's spacing: what is nearer than that may tie.
_GRID = 2.0**-22


def herding(signals: Signals, budget: int) -> Selection:
    """Pick i is the x with the smallest |i mu - sum_S - x|. Ties keep data set order.

    With drift the sum of mu - x over the chosen, the square is |x - mu|^2 - 2 (x - mu) . drift and
    a term that all x share: one product of the rows with a vector per pick. In float32 it says up
    to a bound on its rounding which few examples can be the nearest; float64 decides.
    """
    features_ND = signals.features_ND
    blocks = list(row_blocks(len(features_ND), 16 * features_ND.shape[1]))
    sums_BD = [features_ND[rows].double().sum(dim=0) for rows in blocks]
    mean_D = torch.stack(sums_BD).sum(dim=0) / len(features_ND)
    squares_N = torch.cat([features_ND[rows].double().square().sum(dim=-1) for rows in blocks])
    spread_N = squares_N - 2 * _products(features_ND, mean_D, blocks) + mean_D @ mean_D
    spread_N += spread_N.mean() + _OFFSET * squares_N.mean()
    # Twice that of a product in float32 with a vector of length 1, itself rounded.
    rounding_N = squares_N.sqrt() * (2.0**-23 * (features_ND.shape[1] + 2))
    drift_D = torch.zeros_like(mean_D)
    picks: list[int] = []
    for _ in range(budget):
        shared = mean_D @ drift_D
        rough_N = spread_N - 2 * (_products(features_ND, drift_D.float(), blocks) - shared)
        slack_N = rounding_N * drift_D.norm() + _GRID * rough_N.abs()
        near = torch.nonzero(rough_N - slack_N <= (rough_N + slack_N).min()).flatten()
        away = spread_N[near] - 2 * (features_ND[near].double() @ drift_D - shared)
        position = int(near[away.float().argmin()])
        picks.append(position)
        # What is taken is never near again.
        spread_N[position] = torch.inf
        drift_D += mean_D - features_ND[position]
    return unweighted(torch.tensor(picks, device=features_ND.device))


def _products(features_ND: Tensor, vector_D: Tensor, blocks: Sequence[slice]) -> Tensor:
    return torch.cat([features_ND[rows].to(vector_D.dtype) @ vector_D for rows in blocks])


HERDING = Strategy(
    function=herding,
    summary="features whose mean is that of all",
    paper='Welling 2009, "Herding Dynamical Weights to Learn" (ICML)',
    cost="N k d",
    needs=FEATURES,
)
