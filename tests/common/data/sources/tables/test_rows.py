from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lipt.common.data.sources.rows import ColumnRows
from lipt.common.data.sources.tables.rows import csv_rows, jsonl_rows, parquet_table_rows
from lipt.common.errors import ConfigError, DataError
from lipt.common.inputs.columns import Column, ColumnType

Write = Callable[..., Path]
PEOPLE = "name,age,city,label\nann,30,x,yes\nbob,,y,no\ncid,50,x,yes\n"


def opened(path: Path, query: str) -> ColumnRows:
    return csv_rows(f"csv:{path}?{query}", Path(f"{path}?{query}"))


def test_numbers_and_categories_are_two_tensors_by_name(write: Write) -> None:
    rows = opened(write(PEOPLE), "drop=name")
    assert rows.columns == (
        Column("numbers", ColumnType.FLOAT32, (1,), standardized=True),
        Column("categories", ColumnType.INT64, (1,), num_values=4096),
    )
    assert rows.tensors["numbers"].tolist() == [[30], [40], [50]]
    first, second, third = rows.tensors["categories"].flatten().tolist()
    assert first == third != second
    assert rows.class_names == ("no", "yes")
    assert rows.labels_N.tolist() == [1, 0, 1]
    assert rows.stamp is not None
    assert rows.stamp.holds()


def test_one_tensor_alone_has_no_name(write: Write) -> None:
    numbers = opened(write(PEOPLE), "drop=name,city&missing=marked")
    assert numbers.columns == (Column("", ColumnType.FLOAT32, (2,), standardized=True),)
    assert numbers.tensors[""].tolist() == [[30, 0], [40, 1], [50, 0]]
    categories = opened(write(PEOPLE), "drop=name&categories=age&buckets=50")
    assert categories.columns == (Column("", ColumnType.INT64, (2,), num_values=50),)


def test_the_order_of_the_columns_in_the_file_does_not_matter(write: Write) -> None:
    rows = opened(write("b,label,a\n1,x,2\n3,y,4\n"), "label=label")
    assert rows.tensors[""].tolist() == [[2, 1], [4, 3]]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            "label=lable",
            "no column 'lable'. Did you mean label? Write label=COLUMN with one of name, age",
        ),
        ("drop=Name", "has no column 'Name'. Did you mean name?"),
        (
            "numbers=ages",
            "mean age? Write numbers=COLUMN with one of name, age, city, label",
        ),
        ("text=nam", "Write text=COLUMN with one of"),
        ("drop=name,age,city", "has no column besides age, city, label, name"),
    ],
)
def test_columns_that_are_not_there_are_answered_with_those_that_are(
    write: Write, query: str, words: str
) -> None:
    with pytest.raises(DataError) as caught:
        opened(write(PEOPLE), query)
    assert words in str(caught.value)


@pytest.mark.parametrize("query", ["text=name&drop=age", "max_length=5"])
def test_options_of_text_and_of_features_do_not_mix(write: Write, query: str) -> None:
    with pytest.raises(ConfigError, match="which are not read with"):
        opened(write(PEOPLE), query)


def test_texts_are_tokens_filled_up_with_zeros(write: Write) -> None:
    path = write('title,body,label\nA cat,"sat, still",x\nA cat,,y\n')
    rows = opened(path, "text=title,body&max_length=6&vocabulary=1000")
    assert rows.columns == (Column("", ColumnType.INT64, (6,), num_values=1000),)
    first, second = rows.tensors[""].tolist()
    assert 0 not in first[:5]
    assert second == [*first[:2], 0, 0, 0, 0]
    assert first[5] == 0
    assert rows.raw(1) == torch.tensor(second).numpy().tobytes()


def test_hugging_face_s_names_come_with_a_mask(write: Write) -> None:
    rows = opened(write("text,label\na b,x\na,y\n"), "text=text&max_length=3&names=huggingface")
    assert [column.name for column in rows.columns] == ["input_ids", "attention_mask"]
    assert rows.tensors["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert rows.tensors["attention_mask"].dtype == torch.int64


def test_what_is_cut_and_what_is_empty_is_told(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
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
        jsonl_rows("jsonl", Path(f"{path}?label=label")),
        parquet_table_rows("parquet", f"{tmp_path / 't.parquet'}?label=label"),
    ):
        assert rows.columns == expected.columns
        assert rows.class_names == expected.class_names
        assert [rows.raw(row) for row in range(3)] == [expected.raw(row) for row in range(3)]
