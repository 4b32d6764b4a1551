from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet
from torch import Tensor

from lipt.common.errors import DataError
from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.loading import open_dataset
from lipt.data.registry import open_rows
from lipt.data.sources.rows import ColumnRows
from lipt.data.sources.tables.csv_and_json import CsvTable
from lipt.data.sources.tables.reading import read_categories, read_labels, read_numbers
from lipt.data.sources.tables.table import BATCH_ROWS, Table
from lipt.data.sources.tables.texts import bucket_of

Write = Callable[..., Path]
PEOPLE = "name,age,city,label\nann,30,x,yes\nbob,,y,no\ncid,50,x,yes\n"


def opened(path: Path, query: str) -> ColumnRows:
    return rows_of(f"csv:{path}?{query}")


def rows_of(source: str) -> ColumnRows:
    rows = open_rows(source, (), None)
    assert isinstance(rows, ColumnRows)
    return rows


def test_numbers_and_categories_are_two_tensors_by_name(write: Write) -> None:
    rows = opened(write(PEOPLE), "drop=name")
    numbers = Column("numbers", ColumnType.FLOAT32, (2,), standardized=True)
    assert rows.columns == (numbers, Column("categories", ColumnType.INT64, (1,), num_values=4096))
    assert rows.tensors["numbers"].tolist() == [[30, 0], [40, 1], [50, 0]]
    first, second, third = rows.tensors["categories"].flatten().tolist()
    assert first == third != second
    assert rows.class_names == ("no", "yes")
    assert rows.labels_N.tolist() == [1, 0, 1]
    assert rows.stamp is not None
    assert rows.stamp.holds()
    # One tensor alone has no name.
    rows = opened(write(PEOPLE), "drop=name,city")
    assert rows.columns == (replace(numbers, name=""),)
    assert rows.tensors[""].tolist() == [[30, 0], [40, 1], [50, 0]]
    rows = opened(write(PEOPLE), "drop=name&categories=age&buckets=50")
    assert rows.columns == (Column("", ColumnType.INT64, (2,), num_values=50),)


def test_missing_columns_are_refused_with_the_existing_ones(write: Write) -> None:
    for query, words in (
        ("label=lable", r"'lable'\. Did you mean label\? Write label=COLUMN with one of name, age"),
        ("drop=Name", r"has no column 'Name'\. Did you mean name\?"),
        ("text=nam", "Write text=COLUMN with one of"),
        ("drop=name,age,city", "has no column besides age, city, label, name"),
    ):
        with pytest.raises(DataError, match=words):
            opened(write(PEOPLE), query)


def test_json_lines_and_parquet_are_read_alike(write: Write, tmp_path: Path) -> None:
    expected = opened(write(PEOPLE), "drop=name")
    path = write(
        '{"city": "x", "age": 30, "label": "yes"}\n{"city": "y", "label": "no"}\n'
        '{"city": "x", "age": 50.0, "label": "yes"}\n',
        "t.jsonl",
    )
    table = pa.table(
        {"city": ["x", "y", "x"], "age": [30, None, 50], "label": ["yes", "no", "yes"]}
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    for rows in (
        rows_of(f"jsonl:{path}?label=label"),
        rows_of(f"parquet:{tmp_path / 't.parquet'}?label=label"),
    ):
        assert rows.columns == expected.columns
        assert rows.class_names == expected.class_names
        assert [rows.raw(row) for row in range(3)] == [expected.raw(row) for row in range(3)]


def numbers_of(table: Table, name: str, *, required: bool = False) -> NDArray[np.float64] | None:
    found = read_numbers(table, name, table.read([name])[name], required=required)
    return None if found is None else found.values_N


def test_columns_of_numbers_may_have_missing_cells(write: Write) -> None:
    table = CsvTable(write("a,b,c,d\n1,x,,NA\n 2e1 ,3,n/a,?\n,4,5,\n"))
    numbers = {name: numbers_of(table, name) for name in table.columns}
    np.testing.assert_array_equal(numbers["a"], [1, 20, np.nan])
    np.testing.assert_array_equal(numbers["c"], [np.nan, np.nan, 5])
    assert numbers["b"] is numbers["d"] is None
    table = CsvTable(write("a,b\n1,2\nNA,-Infinity\nlow,3\n"))
    with pytest.raises(DataError, match=r"a is to be of numbers, but holds 'low' in row 2\."):
        numbers_of(table, "a", required=True)
    with pytest.raises(DataError, match="column b holds '-Infinity' in row 1, no finite number"):
        numbers_of(table, "b")


def test_a_category_has_one_code_in_all_files(write: Write) -> None:
    train, test = (
        {
            name: read_categories(table, name, table.read([name])[name], 4096)[0].tolist()
            for name in "ab"
        }
        for table in (CsvTable(write(text)) for text in ("a,b\nx,y\n z ,x\n", "b,a\nx,z\nNA,\n"))
    )
    assert [train[name][1] for name in "ab"] == [test[name][0] for name in "ab"]
    # The same text in another column is another category, and so is what is missing.
    assert len({code for codes in (*train.values(), *test.values()) for code in codes}) == 6
    # Those of the first version: others would be other inputs to models trained before.
    found = [train["a"][0], bucket_of("b", "x", 4096), bucket_of("a", "", 2)]
    assert found == [1746, 410, 1]


def labels_of(table: Table, classes: Sequence[str] = ()) -> tuple[Tensor, tuple[str, ...]]:
    return read_labels(table, "y", table.read(["y"])["y"], classes)


def table(write: Write, *labels: object) -> CsvTable:
    return CsvTable(write("y,z\n" + "".join(f"{label},1\n" for label in labels)))


@pytest.mark.parametrize(
    ("labels", "given", "names", "numbers"),
    [
        (("dog", " cat", "dog", "ant"), (), ("ant", "cat", "dog"), [2, 1, 2, 0]),
        ((10, 9, -1, 9), (), ("-1", "9", "10"), [2, 1, 0, 1]),
        (("b", "a"), ("b", "c", "a"), ("b", "c", "a"), [0, 2]),
    ],
)
def test_classes_are_sorted_by_name_or_number_unless_given(
    write: Write,
    labels: tuple[object, ...],
    given: tuple[str, ...],
    names: tuple[str, ...],
    numbers: list[int],
) -> None:
    labels_N, found = labels_of(table(write, *labels), given)
    assert (labels_N.tolist(), found) == (numbers, names)


def test_class_numbers_index_the_names_of_the_file(write: Write) -> None:
    named = table(write, 1, 0, 1)
    named.class_names = {"y": ("neg", "pos", "none")}
    labels_N, names = labels_of(named)
    assert (labels_N.tolist(), names) == ([1, 0, 1], ("neg", "pos", "none"))
    named = table(write, 1, -1, 1)
    named.class_names = {"y": ("neg", "pos")}
    with pytest.raises(DataError, match=r"row 1 has the label '-1', .* none of its 2 classes"):
        labels_of(named)
    with pytest.raises(DataError, match=r"row 0 has the label 'b', which is none of its 1 classes"):
        labels_of(table(write, "b", "a"), ["a"])
    fractions = "1000 different labels .* 1000 of them fractions.* write target=y"
    cases: list[tuple[list[object], str]] = [
        (["a", "", "b", " "], r"2 of 4 rows have no label in the column y: rows 1, 3\."),
        ([], "has no rows"),
        ([f"id{number}" for number in range(150)], "150 different labels in 150 rows"),
        ([0.5 + number for number in range(1000)], fractions),
    ]
    for labels, words in cases:
        with pytest.raises(DataError, match=words):
            labels_of(table(write, *labels))


def test_a_notation_that_changes_in_a_later_batch_makes_a_column_categorical(write: Write) -> None:
    table = CsvTable(write("a;b\n" + "1;2024-01-01\n" * BATCH_ROWS + "1,5;7\n"))
    numbers = numbers_of(table, "a")
    assert numbers is not None
    assert numbers[-1] == 1.5
    assert numbers_of(table, "b") is None
    with pytest.raises(
        DataError, match=rf"b is to be of numbers, but holds '7' in row {BATCH_ROWS}"
    ):
        numbers_of(table, "b", required=True)


def test_every_column_has_a_line_that_says_how_it_was_read(write: Write) -> None:
    lines = ["id,day,kind,skipped,label"]
    lines += [f"{row},2024-01-{row + 1:02d},{'xy'[row % 2]},1,{'ab'[row % 2]}" for row in range(20)]
    data = open_dataset(f"csv:{write(chr(10).join(lines))}?drop=skipped")
    assert data.reading == [
        "id: whole numbers, 0 to 19, a different one in every row, like an id: drop=id ignores it",
        "day: dates, in seconds since 1970, 2024-01-01 to 2024-01-20",
        "kind: categories, 2 different",
        "skipped: not used",
        "label: label, 2 different: a, b",
    ]
    assert repr(data).endswith(
        ": 20 examples, 2 classes (a, b), numbers float32[2], categories int64[1])"
    )
    assert all(line.split(",")[0] in data._repr_html_() for line in data.reading)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_dates_of_a_parquet_file_equal_those_of_a_csv_file(
    write: Write, tmp_path: Path, unit: str
) -> None:
    # Of these, nanoseconds times 1e-9 are off by a bit.
    seconds = [10_000_019 * row for row in range(200)]
    assert any(second * 10**9 * 1e-9 != second for second in seconds)
    moments = [datetime.fromtimestamp(second, UTC) for second in seconds]
    column = pa.array([moment.replace(tzinfo=None) for moment in moments], pa.timestamp(unit))
    parquet.write_table(pa.table({"at": column, "label": [0, 1] * 100}), tmp_path / "t.parquet")
    lines = [f"{moment:%Y-%m-%d %H:%M:%S},{row % 2}" for row, moment in enumerate(moments)]
    path = write("\n".join(["at,label", *lines]))
    found = rows_of(f"parquet:{tmp_path / 't.parquet'}?label=label")
    assert found.reading == rows_of(f"csv:{path}").reading
    assert found.fingerprint() == rows_of(f"csv:{path}").fingerprint()


def test_a_file_is_parsed_once_for_all_its_columns(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Sequence[str]] = []
    batches = CsvTable.batches
    monkeypatch.setattr(
        CsvTable, "batches", lambda table, names: read.append(names) or batches(table, names)
    )
    opened(write(PEOPLE), "drop=name")
    assert read == [["age", "city", "label"]]


def test_a_column_of_numbers_and_texts_is_one_of_texts(write: Write) -> None:
    lines = ['{"a": 1, "label": 0}'] * BATCH_ROWS + ['{"a": "x", "label": 1}', '{"label": 1}']
    rows = rows_of(f"jsonl:{write(chr(10).join(lines), 't.jsonl')}")
    assert str(rows.reading[0]) == "a: categories, 2 different, 1 missing"
