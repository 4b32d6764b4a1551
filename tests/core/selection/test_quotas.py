from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.errors import BudgetError
from lipt.core.selection.quotas import (
    class_quotas,
    proportional_quotas,
    worth_counting,
)


@pytest.mark.parametrize(
    ("counts", "budget", "expected"),
    [
        ([10, 10, 10], 9, (3, 3, 3)),
        ([2, 10, 10], 12, (2, 5, 5)),  # what the small class lacks is shared
        ([10, 12, 11], 10, (3, 4, 3)),  # one seat left: the largest class
        ([10, 10, 10], 11, (4, 4, 3)),  # two left, all alike: the lowest labels
        ([5, 0, 5], 3, (2, 0, 1)),
        ([1, 1, 100], 50, (1, 1, 48)),
        ([3, 4, 5], 2, (0, 1, 1)),  # fewer seats than classes: the largest ones
        ([3, 4, 5], 12, (3, 4, 5)),
        ([3, 4, 5], 0, (0, 0, 0)),
        ([7], 4, (4,)),
        ([5000] * 10, 5000, (500,) * 10),
        ([], 0, ()),
    ],
)
def test_by_hand(counts: list[int], budget: int, expected: tuple[int, ...]) -> None:
    assert class_quotas(counts, budget) == expected


def one_seat_at_a_time(counts: Sequence[int], budget: int) -> tuple[int, ...]:
    """The next seat goes to the class that has least, of those the largest, the lowest label."""
    quotas = [0] * len(counts)
    for _ in range(budget):
        free = [label for label, count in enumerate(counts) if quotas[label] < count]
        label = min(free, key=lambda label: (quotas[label], -counts[label], label))
        quotas[label] += 1
    return tuple(quotas)


@given(st.data())
def test_equals_sharing_one_seat_at_a_time(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    budget = data.draw(st.integers(0, sum(counts)))
    quotas = class_quotas(counts, budget)
    assert quotas == one_seat_at_a_time(counts, budget)
    assert sum(quotas) == budget
    assert all(quota <= count for quota, count in zip(quotas, counts, strict=True))
    present = [quota for quota, count in zip(quotas, counts, strict=True) if count]
    assert budget < len(present) or all(present)


@pytest.mark.parametrize("budget", [-1, 6])
def test_a_budget_that_the_classes_cannot_give_is_refused(budget: int) -> None:
    with pytest.raises(BudgetError, match=rf"budget {budget} .* 5 examples.*Choose one in 0\.\.5"):
        class_quotas([2, 3], budget)


@pytest.mark.parametrize(
    ("counts", "budget", "expected"),
    [
        ([10, 20, 30], 6, (1, 2, 3)),
        ([10, 20, 30], 7, (1, 2, 4)),  # 1.17, 2.33, 3.5
        ([1, 1, 1], 2, (1, 1, 0)),  # all alike: the lowest groups
        ([0, 4], 4, (0, 4)),
        ([3, 4, 5], 12, (3, 4, 5)),
        ([3, 4, 5], 0, (0, 0, 0)),
        ([], 0, ()),
    ],
)
def test_proportions_by_hand(counts: list[int], budget: int, expected: tuple[int, ...]) -> None:
    assert proportional_quotas(counts, budget) == expected


@given(st.data())
def test_proportions_are_off_by_less_than_one(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    budget = data.draw(st.integers(0, sum(counts)))
    quotas = proportional_quotas(counts, budget)
    assert sum(quotas) == budget
    for quota, count in zip(quotas, counts, strict=True):
        assert quota <= count
        assert abs(quota * sum(counts) - budget * count) < max(1, sum(counts))


def test_a_budget_that_the_groups_cannot_give_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"budget 6 .* 5 examples.*Choose one in 0\.\.5"):
        proportional_quotas([2, 3], 6)


@pytest.mark.parametrize(
    ("counts", "wrong", "budget", "expected"),
    [
        ([100, 20], [0.0, 0.0], 40, (100, 20)),
        ([100, 20], [0.25, 0.75], 40, (75, 5)),  # what is wrong does not count
        ([100, 20], [0.25, 0.75], 80, (75, 5)),
        ([100, 20], [0.25, 0.75], 100, (88, 13)),  # half of it does: 87.5 and 12.5
        ([100, 20], [0.25, 0.75], 120, (100, 20)),
        ([0, 4], [0.5, 0.5], 1, (0, 2)),
    ],
)
def test_wrong_labels_have_no_say_in_quotas_unless_they_are_needed(
    counts: list[int], wrong: list[float], budget: int, expected: tuple[int, ...]
) -> None:
    assert worth_counting(counts, wrong, budget) == expected


@given(st.data())
def test_there_is_always_enough_that_counts(data: st.DataObject) -> None:
    classes = st.tuples(st.integers(0, 500), st.floats(0, 1))
    counts, wrong = zip(*data.draw(st.lists(classes, min_size=1, max_size=8)), strict=True)
    budget = data.draw(st.integers(0, sum(counts)))
    found = worth_counting(counts, wrong, budget)
    assert sum(found) >= budget
    assert all(one <= count for one, count in zip(found, counts, strict=True))
