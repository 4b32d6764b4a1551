from __future__ import annotations

import json
from pathlib import Path

import pytest

from lipt.common.data.sources.tables.files import ParquetTable
from lipt.common.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_files_follow_each_other_and_name_the_numbers_of_their_classes(tmp_path: Path) -> None:
    features = {"label": {"_type": "ClassLabel", "names": ["neg", "pos"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for name, text in (("train-0", "a"), ("train-1", None), ("test-0", "no")):
        table = pa.table(
            {"text": pa.array([text], pa.string()), "x": [float("nan")], "label": [1], "b": [True]}
        )
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / f"{name}.parquet")
    table = ParquetTable("parquet", str(tmp_path))
    assert table.columns == ("text", "x", "label", "b")
    assert table.class_names["label"] == ("neg", "pos")
    assert list(table.chunks(["label", "text", "x", "b"])) == [
        [[1], ["a"], [None], ["true"]],
        [[1], [None], [None], ["true"]],
    ]


def test_files_of_other_columns_and_cells_of_other_types_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[1]]}), tmp_path / "0.parquet")
    table = ParquetTable("parquet", str(tmp_path))
    with pytest.raises(DataError, match=r"the column a holds a list.*drop=a"):
        list(table.chunks(["a"]))
    pq.write_table(pa.table({"b": [1]}), tmp_path / "1.parquet")
    with pytest.raises(DataError, match="has the columns b, not those of the first file: a"):
        ParquetTable("parquet", str(tmp_path))
