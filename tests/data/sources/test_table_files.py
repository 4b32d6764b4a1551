from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.errors import ConfigError, DataError
from lipt.data.loading import open_dataset
from lipt.data.sources.rows import ColumnRows
from lipt.data.sources.table_files import (
    CHUNK_ROWS,
    CsvOptions,
    CsvTable,
    ParquetTable,
    with_csv_options,
)
from lipt.data.sources.tables import read_numbers

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

Write = Callable[..., Path]


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
    assert CsvTable(write("\ufeffa,b\n1,2\n"), CsvOptions(encoding="utf-8-sig")).columns[0] == "a"
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


def test_options_are_added_to_the_name_of_a_csv_file() -> None:
    assert with_csv_options("t.csv", CsvOptions()) == "t.csv"
    found = with_csv_options("t.csv", CsvOptions(";", "latin-1", ","))
    assert found == "csv:t.csv?delimiter=%3B&encoding=latin-1&decimal=%2C"
    found = with_csv_options("csv:t?label=a", CsvOptions("\t"))
    assert found == "csv:t?label=a&delimiter=%09"
    with pytest.raises(ConfigError, match="delimiter=; is an option of CSV files, and 'digits'"):
        with_csv_options("digits", CsvOptions(";"))


def test_a_notation_that_changes_in_a_later_chunk_makes_a_column_categorical(write: Write) -> None:
    table = CsvTable(write("a;b\n" + "1;2024-01-01\n" * CHUNK_ROWS + "1,5;7\n"))
    numbers = read_numbers(table, ["a", "b"], required=[])
    assert list(numbers) == ["a"]
    assert numbers["a"].values_N[-1] == 1.5
    with pytest.raises(
        DataError, match=rf"b is to be of numbers, but holds '7' in row {CHUNK_ROWS}"
    ):
        read_numbers(table, ["b"], required=["b"])


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


@pytest.mark.parametrize("line", ['{"a": "\\ud800", "label": 0}', '{"\\ud800": 1, "label": 0}'])
def test_half_characters_of_json_are_refused(write: Write, line: str) -> None:
    with pytest.raises(DataError, match="half of a character"):
        open_dataset(f"jsonl:{write(line + chr(10) + line)}")


@pytest.mark.parametrize(
    ("kind", "number", "seconds"),
    [
        ("date32", 2**30, 86_400.0 * 2**30),
        ("timestamp[s]", 2**40, 2.0**40),
        ("timestamp[us, tz=UTC]", 2**62, 2**62 * 1e-6),
        ("time32[ms]", 2**30, 2**30 * 1e-3),
        ("duration[ns]", -(2**62), -(2**62) * 1e-9),
    ],
)
def test_dates_and_times_that_python_cannot_hold_are_seconds(
    tmp_path: Path, kind: str, number: int, seconds: float
) -> None:
    types = {
        "date32": pa.date32(),
        "timestamp[s]": pa.timestamp("s"),
        "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
        "time32[ms]": pa.time32("ms"),
        "duration[ns]": pa.duration("ns"),
    }
    wide = pa.int32() if "32" in kind else pa.int64()
    column = pa.array([number, None], wide).view(types[kind])
    parquet.write_table(pa.table({"t": column}), tmp_path / "t.parquet")
    table = ParquetTable("parquet", str(tmp_path / "t.parquet"))
    (cells,) = next(table.chunks(["t"]))
    assert cells == [seconds, None]
    assert set(table.dates) == {"t"}


def test_metadata_of_endless_depth_names_no_classes(tmp_path: Path) -> None:
    metadata = {b"huggingface": b'{"info":' + b"[" * 200_000}
    table = pa.table({"a": [1, 2], "label": [0, 1]}).replace_schema_metadata(metadata)
    parquet.write_table(table, tmp_path / "t.parquet")
    data = open_dataset(f"parquet:{tmp_path / 't.parquet'}?label=label")
    assert data.class_names == ("0", "1")
