"""Clusters: how many examples each chosen one represents.

Shapes: N examples, K chosen, B of them at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.solvers.levels import LevelRows


def cluster_sizes(levels: LevelRows, chosen_K: Tensor) -> Tensor:
    """How many examples each chosen one represents; they sum to N.

    Every example counts once, with the chosen one that it is most similar to. Ties go to
    the lowest id, but a chosen example always represents itself.

    Returns:
        K int64, in the order of `chosen_K`, whose ids are distinct; none below 1.
    """
    ids_K, order_K = chosen_K.sort()
    best_N = torch.full((len(levels),), -1, dtype=torch.int32, device=chosen_K.device)
    owners_N = torch.zeros(len(levels), dtype=torch.int64, device=chosen_K.device)
    for rows in row_blocks(len(ids_K), 16 * len(levels)):
        highest_N, places_N = levels.rows(ids_K[rows]).max(dim=0)
        # Strictly: an equal level of a higher id does not count.
        better_N = highest_N > best_N
        best_N[better_N] = highest_N[better_N].int()
        owners_N[better_N] = places_N[better_N] + rows.start
    owners_N[ids_K] = torch.arange(len(ids_K), device=chosen_K.device)
    sizes_K = torch.empty_like(chosen_K)
    sizes_K[order_K] = owners_N.bincount(minlength=len(ids_K))
    return sizes_K
