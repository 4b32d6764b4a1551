"""Shapes: N rows, D columns of numbers, C columns of categories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lipt.common.data.sources.tables.files import CsvTable
from lipt.common.data.sources.tables.rows import (
    bucket_of,
    categories_tensor,
    numbers_tensor,
    read_numbers,
)
from lipt.common.errors import DataError

Write = Callable[[str], Path]


def test_columns_whose_cells_are_all_numbers_or_missing_are_of_numbers(write: Write) -> None:
    table = CsvTable(write("a,b,c,d\n1,x,,NA\n 2e1 ,3,n/a,?\n,4,5,\n"), ",")
    numbers = read_numbers(table, ["a", "b", "c", "d"], required=[])
    assert list(numbers) == ["a", "c"]
    np.testing.assert_array_equal(numbers["a"], np.array([1, 20, np.nan], np.float32))
    np.testing.assert_array_equal(numbers["c"], np.array([np.nan, np.nan, 5], np.float32))


def test_a_column_that_has_to_be_of_numbers_names_what_is_none(write: Write) -> None:
    table = CsvTable(write("a\n1\nNA\nlow\n"), ",")
    with pytest.raises(DataError, match=r"a is to be of numbers, but holds 'low' in row 2\."):
        read_numbers(table, ["a"], required=["a"])


@pytest.mark.parametrize("cell", ["inf", "1e39", "-Infinity"])
def test_numbers_that_float32_cannot_hold_are_refused(write: Write, cell: str) -> None:
    table = CsvTable(write(f"a\n1\n{cell}\n"), ",")
    with pytest.raises(DataError, match=r"not finite in float32, the first .*, in the rows 1\."):
        read_numbers(table, ["a"], required=[])


def test_a_missing_number_is_the_mean_of_the_others_and_marked_where_asked() -> None:
    numbers = [np.array([1, np.nan, 3], np.float32), np.array([5, 6, 7], np.float32)]
    assert numbers_tensor(numbers, marked=False).tolist() == [[1, 5], [2, 6], [3, 7]]
    assert numbers_tensor(numbers, marked=True).tolist() == [
        [1, 0, 5, 0],
        [2, 1, 6, 0],
        [3, 0, 7, 0],
    ]


def test_files_that_are_opened_apart_give_a_category_one_code(write: Write) -> None:
    train_NC = categories_tensor(CsvTable(write("a,b\nx,y\n z ,x\n"), ","), ["a", "b"], 4096)
    test_NC = categories_tensor(CsvTable(write("b,a\nx,z\nNA,\n"), ","), ["a", "b"], 4096)
    assert train_NC[1].tolist() == test_NC[0].tolist()
    # The same text in another column is another category, and so is what is missing.
    assert len({*train_NC.flatten().tolist(), *test_NC.flatten().tolist()}) == 6
    assert train_NC[0, 0] == bucket_of("a", "x", 4096)


def test_buckets_are_the_same_for_ever() -> None:
    # Those of the first version: others would be other inputs to models trained before.
    assert [bucket_of("a", "x", 4096), bucket_of("b", "x", 4096), bucket_of("a", "", 2)] == [
        1746,
        410,
        1,
    ]
