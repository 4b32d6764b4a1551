from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.errors import BudgetError
from lipt.common.subsets.budget import (
    budget_from_fraction,
    require_budget,
    resolve_budget,
)


@pytest.mark.parametrize(
    ("fraction", "num_examples", "expected"),
    [
        (0.1, 50_000, 5_000),
        (1.0, 7, 7),
        (0.5, 3, 2),  # 1.5 is rounded up
        (0.5, 1, 1),
        (0.25, 9, 2),  # 2.25 is rounded down
        (0.145, 100, 15),  # written 14.5, though the nearest double is below
        (0.29, 100, 29),
        (1e-6, 1_000_000, 1),
    ],
)
def test_budget_of_a_fraction(fraction: float, num_examples: int, expected: int) -> None:
    assert budget_from_fraction(fraction, num_examples) == expected


@given(
    fraction=st.floats(0.0, 1.0, exclude_min=True, allow_subnormal=False),
    num_examples=st.integers(1, 10**7),
)
def test_budget_is_within_half_an_example(fraction: float, num_examples: int) -> None:
    if fraction * num_examples < 0.499:
        with pytest.raises(BudgetError, match="keeps none"):
            budget_from_fraction(fraction, num_examples)
    elif fraction * num_examples > 0.501:
        budget = budget_from_fraction(fraction, num_examples)
        assert 1 <= budget <= num_examples
        assert abs(budget - fraction * num_examples) <= 0.5 + 1e-6


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.0001, math.nan, math.inf, -math.inf])
def test_a_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(
        BudgetError, match=rf"fraction {fraction} is outside \(0, 1\].*such as 0\.1"
    ):
        budget_from_fraction(fraction, 100)


def test_a_fraction_that_keeps_nothing_is_refused_with_the_smallest_that_does_not() -> None:
    with pytest.raises(BudgetError, match=r"0\.004 of 100 examples keeps none.*at least 0\.005"):
        budget_from_fraction(0.004, 100)
    assert budget_from_fraction(0.005, 100) == 1


@pytest.mark.parametrize("budget", [0, -3, 101])
def test_a_budget_outside_its_range_is_refused(budget: int) -> None:
    with pytest.raises(BudgetError, match=rf"budget {budget} is outside 1\.\.100.*Choose"):
        require_budget(budget, 100)


def test_either_form_of_a_request_is_resolved() -> None:
    assert resolve_budget(fraction=0.1, budget=None, num_examples=50) == 5
    assert resolve_budget(fraction=None, budget=50, num_examples=50) == 50
    with pytest.raises(BudgetError, match=r"budget 51 is outside 1\.\.50"):
        resolve_budget(fraction=None, budget=51, num_examples=50)


@pytest.mark.parametrize(("fraction", "budget"), [(None, None), (0.1, 5)])
def test_exactly_one_form_is_needed(fraction: float | None, budget: int | None) -> None:
    with pytest.raises(
        BudgetError, match=r"exactly one .* Give a fraction in \(0, 1\] or a budget"
    ):
        resolve_budget(fraction=fraction, budget=budget, num_examples=50)
