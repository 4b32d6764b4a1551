"""Budget: how many examples a request stands for, refused before anything is computed."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

from lipt.common.errors import BudgetError


def budget_from_fraction(fraction: float, num_examples: int) -> int:
    """The budget that a fraction of the data set stands for, half an example rounded up.

    The fraction is taken as the decimal number it is written as: 0.145 of 100
    examples is 14.5 and so 15, though the nearest double is below 0.145.

    Args:
        fraction: share of the examples, in (0, 1].
        num_examples: the data set's length.

    Raises:
        BudgetError: the fraction is outside (0, 1], or keeps no example.
    """
    if not math.isfinite(fraction) or not 0.0 < fraction <= 1.0:
        raise BudgetError(
            f"fraction {fraction} is outside (0, 1]. Choose a share of the {num_examples} "
            "examples, such as 0.1."
        )
    budget = int((Decimal(str(fraction)) * num_examples).to_integral_value(ROUND_HALF_UP))
    if not budget:
        raise BudgetError(
            f"fraction {fraction} of {num_examples} examples keeps none. Choose at least "
            f"{0.5 / num_examples:.3g}, or ask for a budget of 1."
        )
    return budget


def require_budget(budget: int, num_examples: int) -> None:
    """Refuse a budget that the data set cannot serve.

    Raises:
        BudgetError: it is outside 1..num_examples.
    """
    if not 1 <= budget <= num_examples:
        raise BudgetError(
            f"budget {budget} is outside 1..{num_examples}, the data set's length. "
            "Choose a fraction in (0, 1] that keeps at least one example."
        )


def resolve_budget(*, fraction: float | None, budget: int | None, num_examples: int) -> int:
    """The budget that a request asks for, by either of its two forms.

    Raises:
        BudgetError: neither or both are given, or what is given cannot be served.
    """
    if fraction is not None and budget is None:
        return budget_from_fraction(fraction, num_examples)
    if budget is None or fraction is not None:
        raise BudgetError(
            f"fraction {fraction} and budget {budget}: exactly one of the two says how many "
            f"of the {num_examples} examples to choose. Give a fraction in (0, 1] or a budget."
        )
    require_budget(budget, num_examples)
    return budget
