from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.data.groups import (
    class_quotas,
    draw_from_groups,
    members,
    mixed_evenly,
    proportional_quotas,
    ranks_in_groups,
)

GROUPS = st.lists(st.integers(0, 6), max_size=40)


def test_rows_of_a_group_ascend_and_empty_groups_have_none() -> None:
    found = members(torch.tensor([2, 0, 2, 0, 2]), num_groups=5)
    assert [rows.tolist() for rows in found] == [[1, 3], [], [0, 2, 4], [], []]


def test_a_rank_counts_the_rows_before_in_the_group() -> None:
    assert ranks_in_groups(torch.tensor([2, 0, 2, 0, 2])).tolist() == [0, 0, 1, 1, 2]


@given(GROUPS)
def test_members_are_the_rows_that_a_scan_of_all_finds(groups: list[int]) -> None:
    groups_N = torch.tensor(groups, dtype=torch.int64)
    found = members(groups_N, num_groups=8)
    for group, rows in enumerate(found):
        assert rows.tolist() == [row for row, own in enumerate(groups) if own == group]
        assert ranks_in_groups(groups_N)[rows].tolist() == list(range(len(rows)))


def test_members_of_a_class_are_spread_evenly() -> None:
    # Of class 0 at 1/8, 3/8, 5/8, 7/8 of the way, of class 1 at 1/4 and 3/4.
    assert mixed_evenly(torch.tensor([0, 0, 0, 0, 1, 1])).tolist() == [0, 4, 1, 2, 5, 3]
    # Those that meet, and those of one class, stay in order.
    assert mixed_evenly(torch.tensor([2, 0, 2, 0])).tolist() == [0, 1, 2, 3]
    assert mixed_evenly(torch.tensor([], dtype=torch.int64)).tolist() == []


def test_draws_from_a_group_are_equally_likely() -> None:
    # 2 of 4 and 2 of 8: half of 1,000 draws and a quarter, deviations 15.8 and 13.7.
    groups_N = torch.tensor([0, 1, 1] * 4)
    counts_N = torch.zeros(12)
    for seed in range(1000):
        generator = torch.Generator().manual_seed(seed)
        counts_N[draw_from_groups(groups_N, (2, 2, 0), generator=generator)] += 1
    assert ((counts_N[groups_N == 0] - 500).abs() < 80).all()
    assert ((counts_N[groups_N == 1] - 250).abs() < 70).all()


def one_seat_at_a_time(counts: Sequence[int], budget: int) -> tuple[int, ...]:
    """The next seat goes to the class that has least, of those the largest, the lowest label."""
    quotas = [0] * len(counts)
    for _ in range(budget):
        free = [label for label, count in enumerate(counts) if quotas[label] < count]
        label = min(free, key=lambda label: (quotas[label], -counts[label], label))
        quotas[label] += 1
    return tuple(quotas)


@given(st.data())
def test_quotas_equal_sharing_one_seat_at_a_time(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    budget = data.draw(st.integers(0, sum(counts)))
    quotas = class_quotas(counts, budget)
    assert quotas == one_seat_at_a_time(counts, budget)
    assert sum(quotas) == budget
    assert all(quota <= count for quota, count in zip(quotas, counts, strict=True))
    present = [quota for quota, count in zip(quotas, counts, strict=True) if count]
    assert budget < len(present) or all(present)


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
        ([0.5, 0.3, 0.2], 7, (4, 2, 1)),  # 3.5, 2.1, 1.4
        ([1.0, 1.0, 1.0], 2, (1, 1, 0)),
    ],
)
def test_proportions_by_hand(counts: list[float], budget: int, expected: tuple[int, ...]) -> None:
    assert proportional_quotas(counts, budget) == expected
