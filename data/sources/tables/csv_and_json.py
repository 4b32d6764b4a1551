"""CSV and JSON lines, also gzipped.

Python's reader parses CSV: Arrow's takes the rest of a file for a cell whose quote is never
closed, limits a line to a block, and does not count the lines of ragged rows.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from lipt.common.errors import ConfigError, DataError
from lipt.common.text import listed
from lipt.data.sources.cells import Decimals, number_in
from lipt.data.sources.storage import Stamp, open_regular
from lipt.data.sources.tables.table import (
    TEXT,
    ColumnT,
    Table,
    TableOfCells,
    batches_of,
    require_names,
)

CSV_OPTIONS = ("delimiter", "encoding", "decimal")
# In characters. A quote that is never closed would take the rest of the file.
_LONGEST_CELL = 2**24
# A line of JSON, of which the whole is in memory.
_LONGEST_LINE = 2**27

# Between cells, the likeliest first.
_DELIMITERS = (",", ";", "\t", "|")
_SNIFFED_LINES = 100
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class CsvTable(Table):
    """CSV with a header line; ignores nameless columns, such as pandas's.

    An empty `delimiter` is recognized, as are decimal commas without a mark; UTF-8 is read without
    an `encoding`.
    """

    def __init__(
        self, path: Path, *, delimiter: str = "", encoding: str = "", decimal: str = ""
    ) -> None:
        self.name, self.stamp = str(path), Stamp.of([path])
        self._path, self._encoding = path, _encoding_of(path, encoding)
        if delimiter and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise ConfigError(
                f"{path}: the delimiter {delimiter!r} is not one character. Write "
                "delimiter=; or delimiter=%09 for a tab."
            )
        if decimal not in ("", ".", ","):
            raise ConfigError(
                f"{path}: decimal={decimal} is neither a point nor a comma. Write "
                "decimal=. or decimal=%2C."
            )
        self._delimiter = delimiter or self._recognized()
        self.decimals = Decimals(decimal, groups=self._delimiter != ";")
        if not delimiter and self._delimiter != ",":
            self.note = f"its cells are separated by {self._delimiter!r}"
        with self._opened() as reader:
            self._header: list[str] = next(reader, [])
        self.columns = tuple(name for name in self._header if name)
        if not self.columns or None not in map(number_in, self.columns):
            raise DataError(
                f"{path}: the first line is {self._header!r:.200}, but it has to name the columns. "
                "Put a line with a name for each column at the top of the file."
            )
        require_names(self.columns, self.name)

    def batches(self, names: Sequence[str]) -> Iterator[list[Any]]:
        places = [self._header.index(name) for name in names]
        for lines in batches_of(self._lines()):
            yield [pa.array([line[place] for line in lines], TEXT) for place in places]

    def _recognized(self) -> str:
        """The first delimiter with as many cells in all lines, else with the most in the header."""
        with _text_file(self._path, self._encoding) as file:
            lines = list(islice(file, _SNIFFED_LINES))
        widths = {delimiter: _widths(lines, delimiter) for delimiter in _DELIMITERS}
        for delimiter, counts in widths.items():
            # The last line may be a part of a cell with line ends.
            if counts and counts[0] > 1 and set(counts[:-1]) <= {counts[0]}:
                return delimiter
        return max(widths, key=lambda delimiter: widths[delimiter][:1])

    def _lines(self) -> Iterator[list[str]]:
        ragged, num_cells = list[int](), len(self._header)
        with self._opened() as reader:
            next(reader)
            for line in reader:
                if len(line) == num_cells:
                    yield line
                elif line:
                    ragged.append(reader.line_num)
        if ragged:
            raise DataError(
                f"{self.name}: {len(ragged)} lines do not have the {num_cells} cells that "
                f"the first line has names for: lines {listed(ragged, 20)}. Correct them, quote "
                "cells that hold the delimiter, or name another one: delimiter=;"
            )

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
        with _text_file(self._path, self._encoding) as file:
            try:
                yield csv.reader(file, delimiter=self._delimiter, strict=True)
            except csv.Error as error:
                raise DataError(
                    f"{self.name} cannot be read as CSV: {error}. Quote cells that hold quotes or "
                    "the delimiter, or convert the file to JSON lines."
                ) from error


def _encoding_of(path: Path, encoding: str) -> str:
    with suppress(LookupError, ValueError):
        "".encode(encoding or "utf-8")
        name = codecs.lookup(encoding or "utf-8").name
        # A byte order mark is no part of the first name.
        return "" if name == "utf-8" else name
    raise ConfigError(
        f"{path}: there is no encoding {encoding!r}. Write encoding=latin-1, "
        "encoding=cp1252 or encoding=utf-16."
    )


def _widths(lines: Sequence[str], delimiter: str) -> list[int]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    with suppress(csv.Error):
        return [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
    return []


class JsonlTable(TableOfCells):
    """An object on each line, UTF-8; columns are the names of all lines."""

    def __init__(self, path: Path) -> None:
        self.name, self.stamp, self._path = str(path), Stamp.of([path]), path
        # A dictionary keeps the order; a set does not.
        columns: dict[str, None] = {}
        for line in self.objects():
            if not line.keys() <= columns.keys():
                columns.update(dict.fromkeys(line))
                require_names(columns, self.name)
        self.columns = tuple(columns)

    def _read(self, names: Sequence[str], read: Callable[..., ColumnT]) -> Iterator[list[ColumnT]]:
        first = 1
        for lines in batches_of(self.objects()):
            columns = {name: [line.get(name) for line in lines] for name in names}
            yield [read(columns[name], self.name, name, first) for name in names]
            first += len(lines)

    def objects(self) -> Iterator[dict[str, Any]]:
        return (line for _, line, _ in self.lines())

    def cells(self, name: str) -> Iterator[tuple[str, Any]]:
        for number, line, _ in self.lines():
            yield f"{self.name}, line {number}", line.get(name)

    def lines(self) -> Iterator[tuple[int, dict[str, Any], str]]:
        """The number, the object and the text of each line that has one."""
        with _text_file(self._path) as file:
            lines = iter(partial(file.readline, _LONGEST_LINE + 1), "")
            for number, text in enumerate(lines, start=1):
                if len(text) > _LONGEST_LINE:
                    raise DataError(
                        f"{self.name}, line {number} has more than {_LONGEST_LINE} characters. "
                        "Write an object on each line, and leave out what is no text."
                    )
                if not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    line = None
                if not isinstance(line, dict):
                    raise DataError(
                        f"{self.name}, line {number} is no JSON object: {text.strip():.80}. Write "
                        'one on each line, such as {"text": "...", "label": "..."}.'
                    )
                yield number, line, text.strip()


@contextmanager
def _text_file(path: Path, encoding: str = "") -> Iterator[TextIO]:
    try:
        with open_regular(path) as raw:
            unpacked = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            with io.TextIOWrapper(unpacked, encoding or "utf-8-sig", newline="") as file:
                yield file
    except UnicodeError as error:
        likely = "latin-1"
        if isinstance(error, UnicodeDecodeError) and error.object[:2] in _UTF16:
            likely = "utf-16"
        raise DataError(
            f"{path} is not {encoding or 'UTF-8'}: {error}. For a CSV file write encoding={likely} "
            f"(--encoding {likely}), or convert it to UTF-8."
        ) from error
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}. Name a file of text.") from error
