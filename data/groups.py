"""Groups: rows by class or by another number, their shares of a budget, and draws of them.

Shapes: N rows, n of them, C classes, G groups, K budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

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


def mixed_evenly(labels_n: Tensor) -> Tensor:
    """Positions that spread each class evenly: its k-th at (k - 1/2) / count; n int64."""
    shares_n = (ranks_in_groups(labels_n).double() + 0.5) / labels_n.bincount()[labels_n]
    return shares_n.argsort(stable=True)


def class_quotas(counts_C: Sequence[int], budget: int) -> tuple[int, ...]:
    """Share a budget equally among classes, none above its size (water-filling).

    Other classes share what a small class cannot give. The rest of equal shares goes to the largest
    classes, ties to the lowest.
    """
    quotas = [0] * len(counts_C)
    left = budget
    while left:
        growing = [label for label, count in enumerate(counts_C) if quotas[label] < count]
        share = left // len(growing)
        if share == 0:
            growing.sort(key=lambda label: (-counts_C[label], label))
            for label in growing[:left]:
                quotas[label] += 1
            return tuple(quotas)
        for label in growing:
            more = min(share, counts_C[label] - quotas[label])
            quotas[label] += more
            left -= more
    return tuple(quotas)


def proportional_quotas(sizes_G: Sequence[float], budget: int) -> tuple[int, ...]:
    """Share a budget in proportion to sizes or shares, the rest to the largest remainders."""
    total = sum(map(Fraction, sizes_G)) or 1
    exact = [budget * Fraction(size) / total for size in sizes_G]
    quotas = list(map(math.floor, exact))
    by_remainder = sorted(
        range(len(exact)), key=lambda group: (quotas[group] - exact[group], group)
    )
    for group in by_remainder[: budget - sum(quotas)]:
        quotas[group] += 1
    return tuple(quotas)


def class_shares(labels_N: Tensor, budget: int) -> Iterator[tuple[int, Tensor, int]]:
    """The label, the rows and the quota of each class that gives examples."""
    rows_C = members(labels_N)
    quotas_C = class_quotas([*map(len, rows_C)], budget)
    for label, (rows, quota) in enumerate(zip(rows_C, quotas_C, strict=True)):
        if quota:
            yield label, rows, quota


def draw_from_groups(
    groups_N: Tensor, quotas_G: Sequence[int], *, generator: torch.Generator
) -> Tensor:
    """Draw `quotas_G[g]` examples of each group g; K int64."""
    # The first of each group in a random order are a random draw.
    shuffle_N = torch.randperm(len(groups_N), generator=generator).to(groups_N.device)
    groups = zip(members(groups_N[shuffle_N], len(quotas_G)), quotas_G, strict=True)
    return shuffle_N[torch.cat([places[:quota] for places, quota in groups])]
