from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.data.sources.tables.files import CsvTable, JsonlTable
from lipt.common.data.sources.tables.rows import read_labels
from lipt.common.errors import DataError

Write = Callable[[str], Path]


def table(write: Write, *labels: object) -> CsvTable:
    return CsvTable(write("y,z\n" + "".join(f"{label},1\n" for label in labels)), ",")


def test_classes_are_in_the_order_of_their_names(write: Write) -> None:
    labels_N, names = read_labels(table(write, "dog", " cat", "dog", "ant"), "y")
    assert names == ("ant", "cat", "dog")
    assert labels_N.tolist() == [2, 1, 2, 0]


def test_classes_that_look_like_numbers_are_in_the_order_of_their_values(write: Write) -> None:
    labels_N, names = read_labels(table(write, 10, 9, -1, 9), "y")
    assert names == ("-1", "9", "10")
    assert labels_N.tolist() == [2, 1, 0, 1]


def test_whole_numbers_are_the_same_class_with_and_without_a_point(write: Write) -> None:
    numbers = JsonlTable(write('{"y": 1}\n{"y": 1.0}\n{"y": 0}\n'))
    assert read_labels(numbers, "y")[0].tolist() == [1, 1, 0]


def test_numbers_stand_for_the_names_that_the_file_has(write: Write) -> None:
    named = table(write, 1, 0, 1)
    named.class_names = {"y": ("neg", "pos", "none")}
    labels_N, names = read_labels(named, "y")
    assert (labels_N.tolist(), names) == ([1, 0, 1], ("neg", "pos", "none"))
    named = table(write, 1, -1, 1)
    named.class_names = {"y": ("neg", "pos")}
    with pytest.raises(DataError, match=r"none of the 2 classes, the first of them '-1' in .* 1\."):
        read_labels(named, "y")


def test_classes_that_are_given_keep_their_order_and_may_lack_examples(write: Write) -> None:
    labels_N, names = read_labels(table(write, "b", "a"), "y", ["b", "c", "a"])
    assert (labels_N.tolist(), names) == ([0, 2], ("b", "c", "a"))
    with pytest.raises(DataError, match=r"1 labels .* none of the 1 classes, .*'b' in the rows 0"):
        read_labels(table(write, "b", "a"), "y", ["a"])


def test_rows_without_a_label_are_named(write: Write) -> None:
    with pytest.raises(DataError, match=r"2 of 4 rows have no label in the column y: rows 1, 3\."):
        read_labels(table(write, "a", "", "b", " "), "y")


def test_measured_numbers_are_refused_as_regression(write: Write) -> None:
    measured = table(write, *(0.5 + number for number in range(1000)))
    with pytest.raises(DataError) as caught:
        read_labels(measured, "y")
    assert "holds 1000 different numbers, 1000 of them fractions" in str(caught.value)
    assert "For regression write target=y" in str(caught.value)


def test_a_label_for_nearly_every_row_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="holds 150 different labels in 150 rows"):
        read_labels(table(write, *(f"id{number}" for number in range(150))), "y")


def test_a_table_without_rows_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="has no rows"):
        read_labels(table(write), "y")
