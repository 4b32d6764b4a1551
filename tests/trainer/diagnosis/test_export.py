from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from lipt.common.errors import ConfigError
from lipt.trainer.diagnosis.export import export_issues, issue_table, writer_of
from tests.trainer.made_up_diagnosis import made_up_diagnosis, made_up_findings

# As cleanlab's Datalab.get_issues() calls them.
CLEANLAB = {
    "given_label",
    "predicted_label",
    "is_label_issue",
    "label_score",
    "is_near_duplicate_issue",
    "near_duplicate_sets",
    "is_outlier_issue",
    "outlier_score",
}
PATHS = [f"/pets/{row}.png" for row in range(8)]


def test_the_columns_are_cleanlabs() -> None:
    table = issue_table(made_up_diagnosis())
    assert set(table) == CLEANLAB | {"index"}
    assert list(issue_table(made_up_diagnosis(), PATHS))[:2] == ["index", "filepath"]
    assert table["given_label"] == ["cat"] * 4 + ["dog"] * 4
    assert table["predicted_label"] == ["cat", "dog", "cat", "cat", "dog", "dog", "cat", "dog"]
    assert [row for row in range(8) if table["is_label_issue"][row]] == [1, 6]
    assert table["label_score"] == [0.9, 0.2, 0.8, 0.7, 0.9, 0.8, 0.1, 0.6]
    assert table["near_duplicate_sets"] == [[2], [], [0], [4, 5], [3, 5], [3, 4], [], []]
    assert [row for row in range(8) if table["is_near_duplicate_issue"][row]] == [0, 2, 3, 4, 5]
    assert [row for row in range(8) if table["is_outlier_issue"][row]] == [7]


def test_csv_is_read_by_pythons_own_reader() -> None:
    content = export_issues(made_up_diagnosis(), Path("issues.csv"), PATHS).decode()
    rows = list(csv.DictReader(io.StringIO(content)))
    assert [row["filepath"] for row in rows] == PATHS
    assert rows[6]["is_label_issue"] == "True"
    assert rows[6]["label_score"] == "0.1"
    assert json.loads(rows[4]["near_duplicate_sets"]) == [3, 5]


def test_json_is_a_list_of_objects() -> None:
    rows = json.loads(export_issues(made_up_diagnosis(), Path("issues.json")))
    assert len(rows) == 8
    assert rows[1]["is_label_issue"] is True
    assert rows[1]["near_duplicate_sets"] == []


def test_parquet_has_typed_columns() -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    content = export_issues(made_up_diagnosis(), Path("issues.parquet"), PATHS)
    table = parquet.read_table(arrow.BufferReader(content))
    assert table.schema.field("is_label_issue").type == arrow.bool_()
    assert table.schema.field("near_duplicate_sets").type == arrow.list_(arrow.int64())
    assert table.to_pylist()[3]["near_duplicate_sets"] == [4, 5]


def test_a_class_name_stays_in_its_cell() -> None:
    findings = made_up_findings() | {"class_names": ['cat, "tame"\n', "=1+1"]}
    content = export_issues(made_up_diagnosis(findings), Path("issues.csv")).decode()
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    assert rows[0]["given_label"] == 'cat, "tame"\n'
    assert len(rows) == 8


def test_another_suffix_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match=r"'issues.xlsx' has .*\.csv, \.json, \.parquet"):
        writer_of(Path("issues.xlsx"))
