"""Quotas: how many examples each class or group gives.

In equal shares as far as the classes reach, or in proportion to their sizes.

Shapes: C classes, G groups.
"""

from __future__ import annotations

import math
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
    _require_enough(counts_C, budget)
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


def proportional_quotas(counts_G: Sequence[int], budget: int) -> tuple[int, ...]:
    """Share a budget among groups in proportion to their sizes.

    What rounding down leaves goes to the largest remainders, ties to the lowest group.

    Args:
        counts_G: examples of each group; 0 for one that is empty.
        budget: how many are wanted, in 0..sum(counts_G).

    Returns:
        One quota per group, none above its size; they sum to `budget`.

    Raises:
        BudgetError: the budget is outside 0..sum(counts_G).
    """
    _require_enough(counts_G, budget)
    total = max(1, sum(counts_G))
    shares = [divmod(budget * count, total) for count in counts_G]
    quotas = [whole for whole, _ in shares]
    by_remainder = sorted(range(len(shares)), key=lambda group: (-shares[group][1], group))
    for group in by_remainder[: budget - sum(quotas)]:
        quotas[group] += 1
    return tuple(quotas)


def worth_counting(
    counts_C: Sequence[int], wrong_C: Sequence[float], budget: int
) -> tuple[int, ...]:
    """How many of each class have a say in its quota: those that are not wrong.

    Of a rare class most labels may be wrong: an equal share would be filled with these. Where
    the budget needs more than are right, all classes count as many more in proportion.

    Args:
        counts_C: examples of each class.
        wrong_C: share of each class whose labels are wrong, in [0, 1].
        budget: how many are wanted, in 0..sum(counts_C).

    Returns:
        One count per class, none above its size; they sum to the budget at least.
    """
    wrong = sum(share * count for share, count in zip(wrong_C, counts_C, strict=True))
    spared = min(1.0, (sum(counts_C) - budget) / wrong) if wrong else 0.0
    pairs = zip(wrong_C, counts_C, strict=True)
    return tuple(math.ceil((1 - spared * share) * count) for share, count in pairs)


def _require_enough(counts: Sequence[int], budget: int) -> None:
    if not 0 <= budget <= sum(counts):
        raise BudgetError(
            f"budget {budget} cannot be shared among classes of {sum(counts)} examples "
            f"together. Choose one in 0..{sum(counts)}."
        )
