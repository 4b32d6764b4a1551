from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.data.sources.parquet import ParquetTable
from lipt.common.data.sources.storage import did_you_mean, split_query
from lipt.common.data.sources.table_files import CHUNK_ROWS, CsvTable, JsonlTable
from lipt.common.errors import ConfigError, DataError

Write = Callable[..., Path]


def test_cells_come_by_the_columns_that_are_asked_for(write: Write) -> None:
    unnamed = CsvTable(write(",a\n0,5\n" + "1,6\n" * CHUNK_ROWS))
    assert unnamed.columns == ("a",)
    assert [len(cells) for (cells,) in unnamed.chunks(["a"])] == [CHUNK_ROWS, 1]
    table = CsvTable(write('\ufeffa,b,c\n1,"x, y",3\n\n4,"l1\nl2",6\n'))
    assert table.columns == ("a", "b", "c")
    assert list(table.chunks(["c", "b"])) == [[["3", "6"], ["x, y", "l1\nl2"]]]


def test_other_delimiters_and_gzip_are_read(tmp_path: Path, write: Write) -> None:
    assert list(CsvTable(write("a;b\n1,5;2\n"), ";").chunks(["a"])) == [[["1,5"]]]
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a\n7\n"))
    assert list(CsvTable(path).chunks(["a"])) == [[["7"]]]


def test_lines_of_other_lengths_are_named_the_first_20_and_how_many(write: Write) -> None:
    table = CsvTable(write("a,b\n1,2\n" + "1\n" * 25))
    with pytest.raises(DataError) as caught:
        list(table.chunks(["a"]))
    lines = ", ".join(map(str, range(3, 23)))
    assert (
        f"25 lines do not have the 2 cells that the first line has names for: lines {lines} "
        in (str(caught.value))
    )
    assert "and 5 more" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2\n3,4\n", r"the first line is \['1', '2'\], but it has to name the columns"),
        ("a,b,a\n", "the first line names a twice"),
        ("", r"the first line is \[\]"),
    ],
)
def test_a_first_line_without_names_is_refused(write: Write, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        CsvTable(write(text))


def test_quotes_that_do_not_end_are_refused(write: Write) -> None:
    table = CsvTable(write('a,b\n1,"2\n3,4\n'))
    with pytest.raises(DataError, match="cannot be read as CSV: unexpected end of data"):
        list(table.chunks(["a"]))


def test_other_encodings_are_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("a\ncaf\xe9\n".encode("latin1"))
    with pytest.raises(DataError, match=r"is not UTF-8: byte 0xe9 .* iconv -f latin1 -t utf-8 t"):
        list(CsvTable(path).chunks(["a"]))


def test_files_that_are_not_there_and_delimiters_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        CsvTable(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match=r"the delimiter '\|\|' is not one character"):
        CsvTable(tmp_path / "none.csv", "||")
    bad = tmp_path / "t.csv.gz"
    bad.write_bytes(b"a,b\n")
    with pytest.raises(DataError, match="Not a gzipped file"):
        CsvTable(bad)


def test_columns_are_those_of_all_lines_and_what_a_line_lacks_is_missing(write: Write) -> None:
    table = JsonlTable(write('{"a": 1, "b": "x"}\n\n{"c": true, "a": null}\n'))
    assert table.columns == ("a", "b", "c")
    assert list(table.chunks(["a", "b", "c"])) == [[[1, None], ["x", None], [None, "true"]]]


def test_lines_that_are_no_objects_and_values_that_are_no_cells_are_named(write: Write) -> None:
    with pytest.raises(DataError, match="line 2 is no JSON object"):
        JsonlTable(write('{"a": 1}\n{"a": \n'))
    with pytest.raises(DataError, match=r"line 1 is no JSON object: \[1\]"):
        JsonlTable(write("[1]\n"))
    table = JsonlTable(write('{"a": 1, "b": [1]}\n'))
    assert list(table.chunks(["a"])) == [[[1]]]
    with pytest.raises(DataError, match=r"object 1: the column b holds a list.*drop=b"):
        list(table.chunks(["b"]))


def test_files_follow_each_other_and_name_the_numbers_of_their_classes(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
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
        [[1, 1], ["a", None], [None, None], ["true", "true"]]
    ]


def test_files_of_other_columns_and_cells_of_other_types_are_refused(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [[1]]}), tmp_path / "0.parquet")
    table = ParquetTable("parquet", str(tmp_path))
    with pytest.raises(DataError, match=r"the column a holds a list.*drop=a"):
        list(table.chunks(["a"]))
    pq.write_table(pa.table({"b": [1]}), tmp_path / "1.parquet")
    with pytest.raises(DataError, match="has the columns b, not those of the first file: a"):
        ParquetTable("parquet", str(tmp_path))


OPTIONS = ("label", "drop", "buckets", "names")


def test_options_follow_a_question_mark_and_are_decoded() -> None:
    path, query = split_query("s", "/a b/t.csv?label=the%20grade&drop=x,y%2Cz", OPTIONS)
    assert path == "/a b/t.csv"
    assert query.text("label", "label") == "the grade"
    assert query.names("drop") == ("x", "y,z")
    assert "names" not in query
    assert query.one_of("names", ("none", "huggingface")) == "none"
    assert query.number("buckets", 7, minimum=2, maximum=9) == 7


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("lable=x", "there is no option 'lable'. Did you mean label? There are: label, drop"),
        ("label=", "the option label needs one value"),
        ("label=a&label=b", "the option label needs one value"),
    ],
)
def test_options_that_do_not_exist_or_have_no_value_are_refused(query: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_query("s", f"t.csv?{query}", OPTIONS)
    assert words in str(caught.value)


def test_numbers_out_of_range_are_refused() -> None:
    for value in ("1", "x"):
        _, query = split_query("s", f"t?buckets={value}", OPTIONS)
        with pytest.raises(ConfigError, match=rf"buckets={value} is not a whole number in 2\.\.9"):
            query.number("buckets", 7, minimum=2, maximum=9)


def test_close_names_are_suggested_whatever_their_case() -> None:
    assert did_you_mean("quality", ["Quality", "qualities", "id"]) == (
        " Did you mean Quality or qualities?"
    )
    assert not did_you_mean("x", ["Quality"])
