from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.data.sources.tables.files import CHUNK_ROWS, CsvTable
from lipt.common.errors import ConfigError, DataError

Write = Callable[[str], Path]


def test_cells_come_by_the_columns_that_are_asked_for(write: Write) -> None:
    table = CsvTable(write('\ufeffa,b,c\n1,"x, y",3\n\n4,"l1\nl2",6\n'), ",")
    assert table.columns == ("a", "b", "c")
    assert list(table.chunks(["c", "b"])) == [[["3", "6"], ["x, y", "l1\nl2"]]]


def test_long_files_come_in_chunks(write: Write) -> None:
    table = CsvTable(write("a\n" + "1\n" * (CHUNK_ROWS + 1)), ",")
    assert [len(cells) for (cells,) in table.chunks(["a"])] == [CHUNK_ROWS, 1]


def test_other_delimiters_and_gzip_are_read(tmp_path: Path, write: Write) -> None:
    assert list(CsvTable(write("a;b\n1,5;2\n"), ";").chunks(["a"])) == [[["1,5"]]]
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a\n7\n"))
    assert list(CsvTable(path, ",").chunks(["a"])) == [[["7"]]]


def test_a_column_without_a_name_is_left_out(write: Write) -> None:
    table = CsvTable(write(",a\n0,5\n1,6\n"), ",")
    assert table.columns == ("a",)
    assert list(table.chunks(["a"])) == [[["5", "6"]]]


def test_lines_of_other_lengths_are_named_the_first_20_and_how_many(write: Write) -> None:
    table = CsvTable(write("a,b\n1,2\n" + "1\n" * 25), ",")
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
        CsvTable(write(text), ",")


def test_quotes_that_do_not_end_are_refused(write: Write) -> None:
    table = CsvTable(write('a,b\n1,"2\n3,4\n'), ",")
    with pytest.raises(DataError, match="cannot be read as CSV: unexpected end of data"):
        list(table.chunks(["a"]))


def test_other_encodings_are_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("a\ncaf\xe9\n".encode("latin1"))
    with pytest.raises(DataError, match=r"is not UTF-8: byte 0xe9 .* iconv -f latin1 -t utf-8 t"):
        list(CsvTable(path, ",").chunks(["a"]))


def test_files_that_are_not_there_and_delimiters_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        CsvTable(tmp_path / "none.csv", ",")
    with pytest.raises(ConfigError, match=r"the delimiter '\|\|' is not one character"):
        CsvTable(tmp_path / "none.csv", "||")
    bad = tmp_path / "t.csv.gz"
    bad.write_bytes(b"a,b\n")
    with pytest.raises(DataError, match="Not a gzipped file"):
        CsvTable(bad, ",")
