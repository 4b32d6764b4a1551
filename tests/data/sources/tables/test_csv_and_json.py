import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from lipt.common.errors import ConfigError, DataError
from lipt.data.loading import open_dataset
from lipt.data.sources.rows import ColumnRows
from lipt.data.sources.tables import table as tables
from lipt.data.sources.tables.csv_and_json import CsvTable, JsonlTable
from lipt.data.sources.tables.table import BATCH_ROWS
from tests.data.columns import cells_of

Write = Callable[..., Path]


def test_only_requested_columns_are_read(write: Write) -> None:
    unnamed = CsvTable(write(",a\n0,5\n" + "1,6\n" * BATCH_ROWS))
    assert unnamed.columns == ("a",)
    assert [len(cells) for (cells,) in unnamed.batches(["a"])] == [BATCH_ROWS, 1]
    table = CsvTable(write('\ufeffa,b,c\n1,"x, y",3\n\n4,"l1\nl2",6\n'))
    assert table.columns == ("a", "b", "c")
    assert cells_of(table, "c", "b") == [["3", "6"], ["x, y", "l1\nl2"]]


def test_other_delimiters_and_gzip_are_read_but_only_utf_8(tmp_path: Path, write: Write) -> None:
    semicolons = CsvTable(write("a;b\n1,5;2\n"), delimiter=";")
    assert cells_of(semicolons, "a") == [["1,5"]]
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a\n7\n"))
    assert cells_of(CsvTable(path), "a") == [["7"]]
    path.write_bytes(b"a,b\n")
    with pytest.raises(DataError, match="Not a gzipped file"):
        CsvTable(path)
    path = tmp_path / "t.csv"
    path.write_bytes("a\ncaf\xe9\n".encode("latin1"))
    with pytest.raises(DataError, match=r"is not UTF-8: .*0xe9 .* encoding=latin-1 \(--enc"):
        CsvTable(path).read(["a"])
    with pytest.raises(DataError, match="No such file"):
        CsvTable(tmp_path / "none.csv")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_the_number_of_columns_is_limited(
    write: Write, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(tables, "MOST_COLUMNS", 3)
    content = {"csv": "a,b,c,d\n", "jsonl": '{"a": 1, "b": 2}\n{"c": 1, "d": 2}\n'}[kind]
    with pytest.raises(DataError, match="more than 3 columns, 'a' is the first"):
        open_dataset(f"{kind}:{write(content)}")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_pipes_and_devices_are_not_tables(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(DataError, match="is no regular file, but a directory, a pipe or"):
            open_dataset(f"{kind}:{path}")


def test_a_cell_of_half_a_million_characters_is_cut(write: Write) -> None:
    path = write(f"text,label\n{'so long ' * 62_500},a\nshort,b\n")
    data = open_dataset(f"csv:{path}?text=text&max_length=4")
    assert data.examples(torch.tensor([0, 1]))[""].shape == (2, 4)  # type: ignore[call-overload]


def test_lines_of_wrong_length_are_counted_and_the_first_20_named(write: Write) -> None:
    table = CsvTable(write("a,b\n1,2\n" + "1\n" * 25))
    lines = ", ".join(map(str, range(3, 23)))
    words = f"25 lines do not have the 2 cells that the first line has names for: lines {lines} and"
    with pytest.raises(DataError, match=f"{words} 5 more"):
        table.read(["a"])
    table = CsvTable(write('a,b\n1,"2\n3,4\n'))
    with pytest.raises(DataError, match="cannot be read as CSV: unexpected end of data"):
        table.read(["a"])
    for text, words in (
        ("1,2\n3,4\n", r"the first line is \['1', '2'\], but it has to name the columns"),
        ("a,b,a\n", "has the column 'a' more than once"),
        ("", r"the first line is \[\]"),
    ):
        with pytest.raises(DataError, match=words):
            CsvTable(write(text))


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_of_a_file_is_recognized(write: Write, mark: str) -> None:
    lines = ["a,b,label", '1,"x,;|\ty",u', '2,"z\nz",v']
    text = "\n".join(lines)
    if mark != ",":
        text = f"a{mark}b{mark}label\n1,5{mark}x{mark}u\n2,5{mark}y{mark}v\n"
    data = open_dataset(f"csv:{write(text)}")
    assert str(data.inputs) == "numbers float32[1], categories int64[1]"
    assert data.note == ("" if mark == "," else f"its cells are separated by {mark!r}")


def test_lines_of_wrong_length_do_not_hide_the_delimiter(write: Write) -> None:
    with pytest.raises(DataError, match=r"1 lines do not have the 2 cells .* lines 3"):
        open_dataset(f"csv:{write('a;label' + chr(10) + '1;x' + chr(10) + '2' + chr(10) + '3;y')}")


@pytest.mark.parametrize(("encoding", "word"), [("latin-1", "latin-1"), ("utf-16", "utf-16")])
def test_the_message_names_the_encoding_that_reads_a_file(
    tmp_path: Path, encoding: str, word: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("caf\xe9,label\r\n1,x\r\n2,y\r\n".encode(encoding))
    with pytest.raises(DataError, match=rf"is not UTF-8: .* write encoding={word} \(--encoding"):
        open_dataset(f"csv:{path}")
    rows = open_dataset(f"csv:{path}?encoding={word}").rows
    assert isinstance(rows, ColumnRows)
    assert [column.name for column in rows.reading] == ["caf\xe9", "label"]


def test_a_byte_order_mark_is_no_part_of_a_name(write: Write) -> None:
    assert CsvTable(write("\ufeffa,b\n1,2\n"), encoding="utf-8-sig").columns[0] == "a"
    path = write("\ufeffa,label\n1,x\n2,y\n")
    assert open_dataset(f"csv:{path}?encoding=UTF8&numbers=a").class_names == ("x", "y")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("delimiter=||", r"the delimiter '\|\|' is not one character"),
        ("decimal=x", "decimal=x is neither a point nor a comma"),
        ("encoding=klingon", "there is no encoding 'klingon'"),
        ("encoding=base64", "there is no encoding 'base64'"),
    ],
)
def test_unusable_csv_options_are_refused(option: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_dataset(f"csv:none.csv?{option}")


def test_two_columns_of_one_name_and_endless_names_are_refused(
    write: Write, tmp_path: Path
) -> None:
    columns = [pa.array([0, 1])] * 3
    parquet.write_table(pa.Table.from_arrays(columns, ["a", "a", "label"]), tmp_path / "t.parquet")
    for source in (f"csv:{write('a,a,label')}", f"parquet:{tmp_path / 't.parquet'}?label=label"):
        with pytest.raises(DataError, match="has the column 'a' more than once"):
            open_dataset(source)
    with pytest.raises(DataError, match=r"whose name has 1001 characters, 'a{38,39}\. Give"):
        open_dataset(f"csv:{write('a' * 1001 + ',label')}")


def test_json_columns_are_those_of_all_lines_with_missing_cells(write: Write) -> None:
    table = JsonlTable(write('{"a": 1, "b": "x"}\n\n{"c": true, "a": null}\n'))
    assert table.columns == ("a", "b", "c")
    assert cells_of(table, "a", "b", "c") == [[1, None], ["x", None], [None, "true"]]
    with pytest.raises(DataError, match="line 2 is no JSON object"):
        JsonlTable(write('{"a": 1}\n{"a": \n'))
    with pytest.raises(DataError, match=r"line 1 is no JSON object: \[1\]"):
        JsonlTable(write("[1]\n"))
    table = JsonlTable(write('{"a": 1, "b": [1]}\n'))
    assert cells_of(table, "a") == [[1]]
    with pytest.raises(DataError, match=r"object 1: the column b holds a list.*drop=b"):
        table.read(["b"])


@pytest.mark.parametrize("line", ['{"a": "\\ud800", "label": 0}', '{"\\ud800": 1, "label": 0}'])
def test_half_characters_of_json_are_refused(write: Write, line: str) -> None:
    with pytest.raises(DataError, match="half of a character"):
        open_dataset(f"jsonl:{write(line + chr(10) + line)}")
