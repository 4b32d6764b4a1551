from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipt.core.selection.solvers import clusters
from lipt.core.selection.solvers.clusters import cluster_sizes
from lipt.core.selection.solvers.levels import StoredLevels
from tests.properties import at_most


def stored(rows: list[list[int]]) -> StoredLevels:
    matrix = torch.tensor(rows, dtype=torch.int16)
    return StoredLevels(matrix, matrix.sum(dim=1, dtype=torch.int64))


def test_by_hand() -> None:
    # On a line at 0, 1, 2, 10: 2 is as near to 1 as to ... nothing else that is chosen.
    points = [0, 1, 2, 10]
    levels = stored([[10 - abs(one - other) for other in points] for one in points])
    assert cluster_sizes(levels, torch.tensor([3, 1])).tolist() == [1, 3]
    # 1 is as near to 0 as to 2: the lowest id has it, in whatever order they were chosen.
    assert cluster_sizes(levels, torch.tensor([0, 2])).tolist() == [2, 2]
    assert cluster_sizes(levels, torch.tensor([2, 0])).tolist() == [2, 2]


def test_rows_that_are_looked_at_one_by_one_come_to_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        clusters, "row_blocks", lambda count, _: [slice(row, row + 1) for row in range(count)]
    )
    test_by_hand()


def test_a_chosen_duplicate_represents_itself() -> None:
    levels = stored([[7] * 5] * 5)
    assert cluster_sizes(levels, torch.tensor([4, 1, 2])).tolist() == [1, 3, 1]


@settings(max_examples=at_most(60))
@given(data=st.data())
def test_everyone_counts_once_with_the_nearest(data: st.DataObject) -> None:
    num_examples = data.draw(st.integers(1, 12))
    budget = data.draw(st.integers(1, num_examples))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    upper = torch.randint(0, 6, (num_examples, num_examples), generator=generator).triu(1)
    rows = (upper + upper.T + 6 * torch.eye(num_examples, dtype=torch.int64)).tolist()
    chosen = torch.randperm(num_examples, generator=generator)[:budget]
    expected = dict.fromkeys(chosen.tolist(), 0)
    for example in range(num_examples):
        nearest = min(expected, key=lambda other: (-rows[other][example], other))
        expected[nearest] += 1
    sizes = cluster_sizes(stored(rows), chosen)
    assert sizes.tolist() == list(expected.values())
    # Not the n + k of counting the chosen ones once more.
    assert int(sizes.sum()) == num_examples


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_the_lowest_level_is_represented_too(dtype: torch.dtype) -> None:
    matrix = torch.zeros(3, 3, dtype=dtype)
    levels = StoredLevels(matrix, matrix.sum(dim=1, dtype=torch.int64))
    assert cluster_sizes(levels, torch.tensor([1])).tolist() == [3]
