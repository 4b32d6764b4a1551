"""Table files: CSV and JSON lines, read by columns in chunks of rows; `parquet` has the third."""

from __future__ import annotations

import csv
import gzip
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from lipt.common.data.sources.storage import did_you_mean
from lipt.common.errors import ConfigError, DataError

# None for a null, NaN or absent value.
Cell = str | int | float | None

CHUNK_ROWS = 8192

# Matched in any case, ignoring spaces around them.
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


class Table(ABC):
    """A data set's file or files, by columns."""

    name: str
    files: Sequence[Path | str]
    columns: tuple[str, ...]
    class_names: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def chunks(self, names: Sequence[str]) -> Iterator[list[list[Cell]]]:
        """Chunks of rows, with a list of cells for each of `names`."""
        rows = self._rows(names)
        while chunk := list(islice(rows, CHUNK_ROWS)):
            yield [list(column) for column in zip(*chunk, strict=True)]

    @abstractmethod
    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Cell]]:
        """The cells of some columns, row by row."""


def is_missing(cell: Cell) -> bool:
    """Whether a cell is empty, or one of NA, N/A, NaN, null, None and ?."""
    if cell is None:
        return True
    if isinstance(cell, str):
        return cell.strip().lower() in _MISSING
    return math.isnan(cell)


def require_columns(table: Table, names: Sequence[str], option: str) -> None:
    """Check that columns are there."""
    for name in names:
        if name not in table.columns:
            raise DataError(
                f"{table.name} has no column {name!r}.{did_you_mean(name, table.columns)} Write "
                f"{option}=COLUMN with one of {', '.join(table.columns)}."
            )


def named_rows(rows: Sequence[int]) -> str:
    """The first 20 row numbers, and the count of the rest."""
    more = f" and {len(rows) - 20} more" if len(rows) > 20 else ""
    return ", ".join(map(str, rows[:20])) + more


class CsvTable(Table):
    """CSV with a header line, UTF-8, also gzipped; ignores nameless columns, such as pandas's."""

    def __init__(self, path: Path, delimiter: str = ",") -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(
                f"{path}: the delimiter {delimiter!r} is not one character. Write delimiter=; or "
                "delimiter=%09 for a tab."
            )
        self.name, self.files = str(path), (path,)
        self._path, self._delimiter = path, delimiter
        with self._opened() as reader:
            self._header: list[str] = next(reader, [])
        self.columns = tuple(name for name in self._header if name)
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if not self.columns or twice or None not in map(number_in, self.columns):
            found = f"names {', '.join(twice)} twice" if twice else f"is {self._header!r:.200}"
            raise DataError(
                f"{path}: the first line {found}, but it has to name the columns. Put a line with "
                "a name for each column at the top of the file."
            )

    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Cell]]:
        places = [self._header.index(name) for name in names]
        ragged: list[int] = []
        with self._opened() as reader:
            next(reader)
            for line in reader:
                if len(line) == len(self._header):
                    yield [line[place] for place in places]
                elif line:
                    ragged.append(reader.line_num)
        if ragged:
            raise DataError(
                f"{self.name}: {len(ragged)} lines do not have the {len(self._header)} cells that "
                f"the first line has names for: lines {named_rows(ragged)}. Correct them, quote "
                "cells that hold the delimiter, or name another one: delimiter=;"
            )

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with _text_file(self._path) as file:
            try:
                yield csv.reader(file, delimiter=self._delimiter, strict=True)
            except csv.Error as error:
                raise DataError(
                    f"{self.name} cannot be read as CSV: {error}. Quote cells that hold quotes or "
                    "the delimiter, or convert the file to JSON lines."
                ) from error


@contextmanager
def _text_file(path: Path) -> Iterator[TextIO]:
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8: byte 0x{error.object[error.start]:02x} stands for nothing "
            f"({error.reason}). Convert it: iconv -f latin1 -t utf-8 {path.name} > new.csv"
        ) from error
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}. Name a file of text.") from error


def number_in(text: str) -> float | None:
    """The number that a text is, if it is one."""
    try:
        return float(text)
    except ValueError:
        return None


def cell_of(value: Any, where: str, name: str) -> Cell:
    """A value of JSON or Parquet as a cell."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    raise DataError(
        f"{where}: the column {name} holds a {type(value).__name__}. Give a text or a number, or "
        f"leave the column out: drop={name}"
    )


class JsonlTable(Table):
    """An object on each line, UTF-8, also gzipped; columns are the names of all lines."""

    def __init__(self, path: Path) -> None:
        self.name, self.files, self._path = str(path), (path,), path
        # A dictionary keeps the order; a set does not.
        self.columns = tuple(dict.fromkeys(name for line in self._objects() for name in line))

    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Cell]]:
        for number, line in enumerate(self._objects(), start=1):
            where = f"{self.name}, object {number}"
            yield [cell_of(line.get(name), where, name) for name in names]

    def _objects(self) -> Iterator[dict[str, Any]]:
        with _text_file(self._path) as file:
            for number, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    line = None
                if not isinstance(line, dict):
                    raise DataError(
                        f"{self.name}, line {number} is no JSON object: {text:.80}. Write one on "
                        'each line, such as {"text": "...", "label": "..."}.'
                    )
                yield line
