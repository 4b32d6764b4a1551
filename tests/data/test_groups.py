import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.data.groups import members, ranks_in_groups

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
