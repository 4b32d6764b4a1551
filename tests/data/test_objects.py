"""Rows as JSON objects: from each form of a table, with every value."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from lipt.common.errors import DataError
from lipt.data.objects import RowObject, chosen_objects

datasets, pd = pytest.importorskip("datasets"), pytest.importorskip("pandas")

ROWS: list[dict[str, Any]] = [
    {"text": f'é{row}\u2028 "quoted"', "id": 2**60 + row, "turns": [{"role": "user", "n": row}]}
    for row in range(4)
]


def objects_of(data: Any, rows: list[int], num_rows: int) -> list[dict[str, Any]]:
    return [json.loads(one.text) for one in chosen_objects(data, rows, num_rows=num_rows)]


def parquet_file(folder: Path) -> str:
    parquet.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet")
    return f"parquet:{folder}/rows.parquet?text=text"


def jsonl_file(folder: Path) -> str:
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    (folder / "rows.jsonl").write_text("\n\n".join(lines), encoding="utf-8")
    return f"{folder}/rows.jsonl"


FORMS: dict[str, Callable[[Path], Any]] = {
    "jsonl": jsonl_file,
    "parquet": parquet_file,
    "rows": lambda _: ROWS,
    "columns": lambda _: {name: [row[name] for row in ROWS] for name in ROWS[0]},
    "pandas": lambda _: pd.DataFrame(ROWS, index=[9, 9, 8, 7]),
    "pyarrow": lambda _: pa.Table.from_pylist(ROWS),
    "Hugging Face": lambda _: datasets.Dataset.from_list(ROWS),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_whole_and_in_order(form: str, tmp_path: Path) -> None:
    data = FORMS[form](tmp_path)
    assert objects_of(data, [1, 3], 4) == [ROWS[1], ROWS[3]]
    assert objects_of(data, [], 4) == []


@pytest.mark.parametrize("form", FORMS)
def test_data_of_another_length_is_refused(form: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 4 rows, and the examples were chosen from 5"):
        objects_of(FORMS[form](tmp_path), [1, 3], 5)


def test_a_line_of_json_is_copied(tmp_path: Path) -> None:
    line = '{"n": 1.50000000000000000000001, "big": 1e999, "e": "\\u00e9"}'
    (tmp_path / "rows.jsonl").write_text(f"{{}}\n  {line}  \n")
    (found,) = chosen_objects(f"jsonl:{tmp_path}/rows.jsonl", [1], num_rows=2)
    assert found.text == line


def test_cells_of_csv_stay_texts(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('id,text\n007,"a, b"\n1e5,\n')
    expected = [{"id": "007", "text": "a, b"}, {"id": "1e5", "text": ""}]
    assert objects_of(f"csv:{tmp_path}/rows.csv?label=id", [0, 1], 2) == expected


def test_other_values_become_those_of_json() -> None:
    day = datetime(2026, 1, 2, 3, tzinfo=UTC)
    values: list[tuple[Any, Any]] = [
        (np.int64(2**62), 2**62),
        (np.float32(0.5), 0.5),
        (float("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
        (np.array([1, 2]), [1, 2]),
        ((1, None), [1, None]),
        (day, "2026-01-02T03:00:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (np.datetime64("2026-01-02T03:04:05.000000001", "ns"), "2026-01-02T03:04:05"),
        (timedelta(minutes=1), 60.0),
        (Decimal("12345678901234567890.10"), "12345678901234567890.10"),
        ({1: np.bool_(True)}, {"1": True}),
        ("half \ud800", "half \ud800"),
    ]
    found = objects_of([{"a": given} for given, _ in values], list(range(len(values))), len(values))
    assert [row["a"] for row in found] == [expected for _, expected in values]


def test_numbers_and_missing_cells_of_a_frame_stay(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": pd.array([2**60, None], dtype="Int64"), "x": [0.1, None]})
    assert objects_of(frame, [0, 1], 2) == [{"n": 2**60, "x": 0.1}, {"n": None, "x": None}]
    structured = np.array([(1, "a"), (2, "b")], dtype=[("n", "i8"), ("s", "U1")])
    assert objects_of(structured, [1], 2) == [{"n": 2, "s": "b"}]


@pytest.mark.parametrize(("value", "what"), [(b"png", "bytes"), (float("-inf"), "-inf")])
def test_values_that_json_lacks_are_named(value: object, what: str) -> None:
    with pytest.raises(DataError, match=rf"row 0: the column a holds {what}, which .*\. Replace"):
        objects_of([{"a": value}], [0], 1)


@pytest.mark.parametrize("data", [(np.zeros((2, 2)), [0, 1]), "digits", [(1, 0), (2, 1)]])
def test_data_without_named_columns_is_refused(data: Any) -> None:
    with pytest.raises(DataError, match="has no rows with named columns"):
        objects_of(data, [0], 2)


def test_names_are_added_at_the_end() -> None:
    assert RowObject(["a"], '{"a": 1}').adding({"weight": 0.5}) == '{"a": 1, "weight": 0.5}'
    assert RowObject([], "{}").adding({"weight": 0.5}) == '{"weight": 0.5}'
    assert RowObject(["a"], '{"a": 1}').adding({}) == '{"a": 1}'
    with pytest.raises(DataError, match="has a column 'weight', which is added"):
        RowObject(["weight"], '{"weight": 1}').adding({"weight": 0.5})
