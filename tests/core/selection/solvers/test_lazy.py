"""Lazy greedy against the plain one, compiled and not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipt.core.selection import compiling
from lipt.core.selection.solvers.compiled_lazy import lazy_greedy_compiled
from lipt.core.selection.solvers.lazy import lazy_greedy, lazy_greedy_torch
from lipt.core.selection.solvers.levels import StoredLevels


def stored(matrix_NT: Tensor) -> StoredLevels:
    return StoredLevels(matrix_NT, matrix_NT.sum(dim=1, dtype=torch.int64))


def with_numba(levels: StoredLevels, budget: int) -> list[int]:
    return lazy_greedy_compiled(
        levels.matrix_NT.numpy(), levels.sums_N.clone().numpy(), budget
    ).tolist()


def plain_greedy(rows: list[list[int]], budget: int) -> list[int]:
    """Every gain of every example before every pick, in whole numbers."""
    chosen: list[int] = []
    best = [0] * len(rows[0])
    for _ in range(budget):
        left = [index for index in range(len(rows)) if index not in chosen]
        gains = {
            index: sum(max(new - old, 0) for new, old in zip(rows[index], best, strict=True))
            for index in left
        }
        chosen.append(max(left, key=lambda index: (gains[index], -index)))
        best = [max(pair) for pair in zip(rows[chosen[-1]], best, strict=True)]
    return chosen


def test_by_hand() -> None:
    # Sums 9, 8, 8, 3. After 0: the others add 3, 5, 3. After 2: 1 adds 0 and 3 adds 2.
    matrix = torch.tensor(
        [[5, 4, 0, 0], [4, 4, 0, 0], [0, 3, 5, 0], [0, 0, 0, 3]], dtype=torch.int32
    )
    matrix[1, 2] = 0
    levels = stored(matrix)
    assert lazy_greedy_torch(levels, 4).tolist() == [0, 2, 3, 1]
    assert with_numba(levels, 4) == [0, 2, 3, 1]


@given(data=st.data())
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_both_paths_are_plain_greedy_ties_included(dtype: torch.dtype, data: st.DataObject) -> None:
    num_examples = data.draw(st.integers(1, 24))
    num_targets = data.draw(st.integers(1, 24))
    # Few levels give many ties; the highest ones would overflow what is narrower than int64.
    highest = data.draw(st.sampled_from([0, 1, 3, 255, 2**15 - 1, 2**24 - 1]))
    highest = min(highest, torch.iinfo(dtype).max)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    matrix_NT = torch.randint(0, highest + 1, (num_examples, num_targets), generator=generator)
    budget = data.draw(st.integers(1, num_examples))
    levels = stored(matrix_NT.to(dtype))
    expected = plain_greedy(matrix_NT.tolist(), budget)
    assert lazy_greedy_torch(levels, budget).tolist() == expected
    assert with_numba(levels, budget) == expected


@pytest.mark.parametrize("level", [0, 7])
def test_all_equal_ends_with_the_lowest_ids(level: int) -> None:
    levels = stored(torch.full((40, 40), level, dtype=torch.int32))
    assert lazy_greedy_torch(levels, 30).tolist() == list(range(30))
    assert with_numba(levels, 30) == list(range(30))


def test_sums_beyond_32_bits_are_exact() -> None:
    # Two rows of 2^24 - 1 that differ by 1 in one of 300 places: 2^32 apart from 32 bits.
    matrix = torch.full((2, 300), 2**24 - 1, dtype=torch.int32)
    matrix[0, 5] -= 1
    levels = stored(matrix)
    assert levels.sums_N.tolist() == [300 * (2**24 - 1) - 1, 300 * (2**24 - 1)]
    assert lazy_greedy_torch(levels, 1).tolist() == with_numba(levels, 1) == [1]


def test_nothing_that_is_given_is_changed() -> None:
    levels = stored(
        torch.randint(0, 100, (20, 20), generator=torch.Generator().manual_seed(0)).int()
    )
    matrix, sums = levels.matrix_NT.clone(), levels.sums_N.clone()
    first = lazy_greedy(levels, 9)
    assert torch.equal(lazy_greedy(levels, 9), first)
    assert torch.equal(levels.matrix_NT, matrix)
    assert torch.equal(levels.sums_N, sums)


def test_without_numba_torch_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = stored(
        torch.randint(0, 100, (30, 30), generator=torch.Generator().manual_seed(1)).int()
    )
    expected = lazy_greedy(levels, 12)
    monkeypatch.setattr(compiling, "_numba_is_installed", lambda: False)
    assert not compiling.can_compile(torch.device("cpu"))
    assert torch.equal(lazy_greedy(levels, 12), expected)


def test_code_that_cannot_be_kept_on_disk_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numba

    def refusing(*, nogil: bool, fastmath: object, cache: bool = False) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", refusing)

    def doubled(value: int) -> int:
        return 2 * value

    assert compiling.compiled(doubled)(4) == 8
