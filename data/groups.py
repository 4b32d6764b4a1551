"""Groups: rows by class, or by another number that several rows share.

Shapes: N rows, G groups.
"""

from __future__ import annotations

import torch
from torch import Tensor


def members(groups_N: Tensor, num_groups: int = 0) -> tuple[Tensor, ...]:
    """The rows of each group, ascending, of at least `num_groups`; int64."""
    counts_G = groups_N.bincount(minlength=num_groups)
    return torch.split(groups_N.argsort(stable=True), counts_G.tolist())


def ranks_in_groups(groups_N: Tensor) -> Tensor:
    """Each row's number among the rows of its group, from 0; N int64."""
    counts_G, order_N = groups_N.bincount(), groups_N.argsort(stable=True)
    first_G = counts_G.cumsum(dim=0) - counts_G
    places_N = torch.arange(len(order_N), device=order_N.device)
    return torch.empty_like(order_N).index_copy_(0, order_N, places_N - first_G[groups_N[order_N]])
