import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lipt.common.data.sources.rows import ColumnRows
from lipt.common.data.sources.table_files import CsvTable
from lipt.common.data.sources.tables import (
    categories_tensor,
    read_labels,
    read_numbers,
    table_rows,
)
from lipt.common.data.sources.texts import bucket_of
from lipt.common.errors import DataError
from lipt.common.inputs.specs import Column, ColumnType

Write = Callable[..., Path]
PEOPLE = "name,age,city,label\nann,30,x,yes\nbob,,y,no\ncid,50,x,yes\n"


def opened(path: Path, query: str) -> ColumnRows:
    return table_rows(f"csv:{path}?{query}", f"{path}?{query}")


def test_numbers_and_categories_are_two_tensors_by_name(write: Write) -> None:
    rows = opened(write(PEOPLE), "drop=name")
    numbers = Column("numbers", ColumnType.FLOAT32, (1,), standardized=True)
    assert rows.columns == (numbers, Column("categories", ColumnType.INT64, (1,), num_values=4096))
    assert rows.tensors["numbers"].tolist() == [[30], [40], [50]]
    first, second, third = rows.tensors["categories"].flatten().tolist()
    assert first == third != second
    assert rows.class_names == ("no", "yes")
    assert rows.labels_N.tolist() == [1, 0, 1]
    assert rows.stamp is not None
    assert rows.stamp.holds()
    # One tensor alone has no name.
    rows = opened(write(PEOPLE), "drop=name,city")
    assert rows.columns == (replace(numbers, name=""),)
    assert rows.tensors[""].tolist() == [[30], [40], [50]]
    rows = opened(write(PEOPLE), "drop=name&categories=age&buckets=50")
    assert rows.columns == (Column("", ColumnType.INT64, (2,), num_values=50),)


def test_columns_that_are_not_there_are_answered_with_those_that_are(write: Write) -> None:
    for query, words in (
        ("label=lable", r"'lable'\. Did you mean label\? Write label=COLUMN with one of name, age"),
        ("drop=Name", r"has no column 'Name'\. Did you mean name\?"),
        ("text=nam", "Write text=COLUMN with one of"),
        ("drop=name,age,city", "has no column besides age, city, label, name"),
    ):
        with pytest.raises(DataError, match=words):
            opened(write(PEOPLE), query)


def test_texts_are_tokens_padded_with_zeros(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write('title,body,label\nA cat,"sat, still",x\nA cat,,y\n')
    rows = opened(path, "text=title,body&max_length=6&vocabulary=1000")
    assert rows.columns == (Column("", ColumnType.INT64, (6,), num_values=1000),)
    first, second = rows.tensors[""].tolist()
    assert 0 not in first[:5]
    assert second == [*first[:2], 0, 0, 0, 0]
    assert first[5] == 0
    assert rows.raw(1) == torch.tensor(second).numpy().tobytes()
    # What is cut and what is empty is told.
    with caplog.at_level(logging.WARNING):
        opened(write('text,label\na b c,x\n"",y\na,y\na,y\n'), "text=text&max_length=2")
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "1 of 4 texts are empty",
        "1 of 4 texts (25.0%) are longer than 2 tokens and cut there; max_length=4 would cut fewer",
    ]


def test_json_lines_and_parquet_are_read_alike(write: Write, tmp_path: Path) -> None:
    expected = opened(write(PEOPLE), "drop=name")
    path = write(
        '{"city": "x", "age": 30, "label": "yes"}\n{"city": "y", "label": "no"}\n'
        '{"city": "x", "age": 50.0, "label": "yes"}\n',
        "t.jsonl",
    )
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {"city": ["x", "y", "x"], "age": [30, None, 50], "label": ["yes", "no", "yes"]}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    for rows in (
        table_rows("jsonl:x", f"{path}?label=label"),
        table_rows("parquet:x", f"{tmp_path / 't.parquet'}?label=label"),
    ):
        assert rows.columns == expected.columns
        assert rows.class_names == expected.class_names
        assert [rows.raw(row) for row in range(3)] == [expected.raw(row) for row in range(3)]


def test_columns_whose_cells_are_all_numbers_or_missing_are_of_numbers(write: Write) -> None:
    table = CsvTable(write("a,b,c,d\n1,x,,NA\n 2e1 ,3,n/a,?\n,4,5,\n"), ",")
    numbers = read_numbers(table, ["a", "b", "c", "d"], required=[])
    assert list(numbers) == ["a", "c"]
    np.testing.assert_array_equal(numbers["a"], np.array([1, 20, np.nan], np.float32))
    np.testing.assert_array_equal(numbers["c"], np.array([np.nan, np.nan, 5], np.float32))
    table = CsvTable(write("a,b\n1,2\nNA,-Infinity\nlow,3\n"))
    with pytest.raises(DataError, match=r"a is to be of numbers, but holds 'low' in row 2\."):
        read_numbers(table, ["a"], required=["a"])
    with pytest.raises(DataError, match="b has numbers that are not finite in float32"):
        read_numbers(table, ["b"], required=[])


def test_files_that_are_opened_apart_give_a_category_one_code_for_ever(write: Write) -> None:
    train_NC = categories_tensor(CsvTable(write("a,b\nx,y\n z ,x\n"), ","), ["a", "b"], 4096)
    test_NC = categories_tensor(CsvTable(write("b,a\nx,z\nNA,\n"), ","), ["a", "b"], 4096)
    assert train_NC[1].tolist() == test_NC[0].tolist()
    # The same text in another column is another category, and so is what is missing.
    assert len({*train_NC.flatten().tolist(), *test_NC.flatten().tolist()}) == 6
    # Those of the first version: others would be other inputs to models trained before.
    found = [int(train_NC[0, 0]), bucket_of("b", "x", 4096), bucket_of("a", "", 2)]
    assert found == [1746, 410, 1]


def table(write: Write, *labels: object) -> CsvTable:
    return CsvTable(write("y,z\n" + "".join(f"{label},1\n" for label in labels)), ",")


@pytest.mark.parametrize(
    ("labels", "given", "names", "numbers"),
    [
        (("dog", " cat", "dog", "ant"), (), ("ant", "cat", "dog"), [2, 1, 2, 0]),
        ((10, 9, -1, 9), (), ("-1", "9", "10"), [2, 1, 0, 1]),
        (("b", "a"), ("b", "c", "a"), ("b", "c", "a"), [0, 2]),
    ],
)
def test_classes_are_in_the_order_of_their_names_or_numbers_or_as_given(
    write: Write,
    labels: tuple[object, ...],
    given: tuple[str, ...],
    names: tuple[str, ...],
    numbers: list[int],
) -> None:
    labels_N, found = read_labels(table(write, *labels), "y", given)
    assert (labels_N.tolist(), found) == (numbers, names)


def test_numbers_stand_for_the_names_that_the_file_has(write: Write) -> None:
    named = table(write, 1, 0, 1)
    named.class_names = {"y": ("neg", "pos", "none")}
    labels_N, names = read_labels(named, "y")
    assert (labels_N.tolist(), names) == ([1, 0, 1], ("neg", "pos", "none"))
    named = table(write, 1, -1, 1)
    named.class_names = {"y": ("neg", "pos")}
    with pytest.raises(DataError, match=r"row 1 has the label '-1', .* none of its 2 classes"):
        read_labels(named, "y")
    with pytest.raises(DataError, match=r"row 0 has the label 'b', which is none of its 1 classes"):
        read_labels(table(write, "b", "a"), "y", ["a"])


def test_columns_without_classes_are_refused(write: Write) -> None:
    fractions = "1000 different labels .* 1000 of them fractions.* write target=y"
    cases: list[tuple[list[object], str]] = [
        (["a", "", "b", " "], r"2 of 4 rows have no label in the column y: rows 1, 3\."),
        ([], "has no rows"),
        ([f"id{number}" for number in range(150)], "150 different labels in 150 rows"),
        ([0.5 + number for number in range(1000)], fractions),
    ]
    for labels, words in cases:
        with pytest.raises(DataError, match=words):
            read_labels(table(write, *labels), "y")
