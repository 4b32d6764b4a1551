"""Quotas: how many examples each class gives, in equal shares as far as the classes reach.

Shapes: C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from lipt.common.errors import BudgetError


def class_quotas(counts_C: Sequence[int], budget: int) -> tuple[int, ...]:
    """Share a budget equally among classes, none above its size.

    What a small class cannot give is shared by the others (water-filling). Seats that
    are left when the shares are equal go to the largest classes, ties to the lowest one.
    So every class that is present gets one as soon as the budget has one for each.

    Args:
        counts_C: examples of each class; 0 for one that is absent.
        budget: how many are wanted, in 0..sum(counts_C).

    Returns:
        One quota per class; they sum to `budget`.

    Raises:
        BudgetError: the budget is outside 0..sum(counts_C).
    """
    if not 0 <= budget <= sum(counts_C):
        raise BudgetError(
            f"budget {budget} cannot be shared among classes of {sum(counts_C)} examples "
            f"together. Choose one in 0..{sum(counts_C)}."
        )
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
