from __future__ import annotations

import pickle

import numpy as np
import pytest

from lipt.trainer.subsets import row_numbers
from lipt.trainer.subsets.row_numbers import RowNumbers

ROWS = RowNumbers(np.array([2, 5, 2**40]))


def test_they_are_pythons_own_ints() -> None:
    assert [type(ROWS[place]) for place in (0, -1)] == [int, int]
    assert [ROWS[0], ROWS[-1]] == [2, 2**40]
    with pytest.raises(IndexError):
        ROWS[3]


def test_they_are_iterated_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_numbers, "_BLOCK", 2)
    assert list(ROWS) == [2, 5, 2**40]
    assert {type(row) for row in ROWS} == {int}
    assert 5 in ROWS
    assert len(ROWS) == 3


def test_a_part_of_them_is_another_view() -> None:
    assert list(ROWS[1:]) == [5, 2**40]
    assert np.shares_memory(ROWS[1:]._indices_N, ROWS._indices_N)


def test_they_travel_to_a_dataloaders_workers() -> None:
    assert list(pickle.loads(pickle.dumps(ROWS))) == [2, 5, 2**40]
