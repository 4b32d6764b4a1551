"""Plane scores: who covers points of a plane, and whose neighbours make them redundant.

A draw is a plane of two features and a point in it. The example nearest to the point covers
it: +1. Its neighbours in the plane share -1, each by 1 / distance^4 from the example that
covers, for they could have done as well. Distances are sums of absolute differences.

Every draw looks at all examples twice. Most of that is adding differences of two columns,
which a processor does for many at a time; sorting, to look at fewer, takes longer for all
but millions of examples.

Shapes: N examples, D features, M draws, B of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.compiling import can_compile


@dataclass(frozen=True)
class PlaneDraws:
    """M points, each in the plane of two features.

    features_M2: which ones, int64, on the CPU.
    points_M2: float32, on the CPU.
    """

    features_M2: Tensor
    points_M2: Tensor


def plane_scores(columns_DN: Tensor, draws: PlaneDraws, num_neighbours: int) -> Tensor:
    """What each example gains and loses by all draws; N float64.

    Ties for the nearest example go to the lowest id. Whoever is as near as the last of the
    neighbours is one, too; those that coincide with the example share all of its -1.

    Args:
        columns_DN: contiguous float32, one row per feature.
        draws: of these features.
        num_neighbours: that share; all others where there are fewer.
    """
    num_neighbours = min(num_neighbours, columns_DN.shape[1] - 1)
    if not can_compile(columns_DN.device):
        return plane_scores_torch(columns_DN, draws, num_neighbours)
    from lipt.core.selection.solvers.compiled_plane import (  # noqa: PLC0415 - numba
        plane_scores_compiled,
    )

    scores_N = torch.zeros(columns_DN.shape[1], dtype=torch.float64)
    plane_scores_compiled(
        columns_DN.numpy(),
        draws.features_M2.numpy(),
        draws.points_M2.numpy(),
        num_neighbours,
        scores_N.numpy(),
    )
    return scores_N


def plane_scores_torch(columns_DN: Tensor, draws: PlaneDraws, num_neighbours: int) -> Tensor:
    """The same without compiled code, and on any device: in blocks of draws."""
    num_examples, device = columns_DN.shape[1], columns_DN.device
    scores_N = torch.zeros(num_examples, dtype=torch.float64, device=device)
    ids_N = torch.arange(num_examples, device=device)
    for rows in row_blocks(len(draws.features_M2), 64 * num_examples):
        first_BN, second_BN = columns_DN[draws.features_M2[rows].T.to(device)]
        x_B, y_B = draws.points_M2[rows].T.to(device)
        distances_BN = _distances(first_BN, second_BN, x_B, y_B)
        nearest_B1 = distances_BN.amin(dim=1, keepdim=True)
        # Of equal ones the first, which argmin does not promise.
        covering_B1 = ids_N.where(distances_BN == nearest_B1, num_examples).amin(dim=1)[:, None]
        scores_N += covering_B1[:, 0].bincount(minlength=num_examples)
        if num_neighbours == 0:
            continue
        x_B, y_B = (values.gather(1, covering_B1)[:, 0] for values in (first_BN, second_BN))
        distances_BN = _distances(first_BN, second_BN, x_B, y_B)
        distances_BN.scatter_(1, covering_B1, torch.inf)
        farthest_B1 = distances_BN.kthvalue(num_neighbours, dim=1, keepdim=True).values
        least_B1 = distances_BN.amin(dim=1, keepdim=True).double()
        # Relative to the nearest one nothing overflows; 0 / 0 is one that coincides.
        shares_BN = (least_B1 / distances_BN).nan_to_num_(nan=1.0).square_().square_()
        shares_BN.masked_fill_(distances_BN > farthest_B1, 0.0)
        scores_N -= (shares_BN / shares_BN.sum(dim=1, keepdim=True)).sum(dim=0)
    return scores_N


def _distances(first_BN: Tensor, second_BN: Tensor, x_B: Tensor, y_B: Tensor) -> Tensor:
    return (first_BN - x_B[:, None]).abs_().add_((second_BN - y_B[:, None]).abs_())
