"""CSV: lines of cells below a line with the columns' names, UTF-8, also gzipped.

A column without a name, such as the row numbers that pandas writes, is left out.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from lipt.common.data.sources.tables.cells import CHUNK_ROWS, Cell, named_rows
from lipt.common.errors import ConfigError, DataError


class CsvTable:
    """A file with one table."""

    def __init__(self, path: Path, delimiter: str) -> None:
        """Read the line of names.

        Raises:
            ConfigError: the delimiter is not one character.
            DataError: there is no such file, or its first line names no columns.
        """
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(
                f"{path}: the delimiter {delimiter!r} is not one character. Write delimiter=; or "
                "delimiter=%09 for a tab."
            )
        self.name = str(path)
        self.files: Sequence[Path | str] = (path,)
        self.class_names: Mapping[str, tuple[str, ...]] = {}
        self._path, self._delimiter = path, delimiter
        with self._opened() as file:
            self._header: list[str] = next(self._reader(file), [])
        self.columns = tuple(name for name in self._header if name)
        self._require_names()

    def chunks(self, names: Sequence[str]) -> Iterator[list[list[Cell]]]:
        """The cells of some columns; empty lines are passed over."""
        places = [self._header.index(name) for name in names]
        ragged: list[int] = []
        with self._opened() as file:
            reader = self._reader(file)
            next(reader)
            lines: list[list[str]] = []
            for line in reader:
                if len(line) == len(self._header):
                    lines.append(line)
                elif line:
                    ragged.append(reader.line_num)
                if len(lines) == CHUNK_ROWS:
                    yield [[line[place] for line in lines] for place in places]
                    lines = []
            if lines:
                yield [[line[place] for line in lines] for place in places]
        if ragged:
            raise DataError(
                f"{self.name}: {len(ragged)} lines do not have the {len(self._header)} cells that "
                f"the first line has names for: lines {named_rows(ragged)}. Correct or remove "
                "them, quote cells that hold the delimiter, or name another one: delimiter=;"
            )

    def _reader(self, file: TextIO) -> Any:
        return csv.reader(file, delimiter=self._delimiter, strict=True)

    @contextmanager
    def _opened(self) -> Iterator[TextIO]:
        with text_file(self._path) as file:
            try:
                yield file
            except csv.Error as error:
                raise DataError(
                    f"{self.name} cannot be read as CSV: {error}. Quote cells that hold quotes or "
                    "the delimiter, or convert the file to JSON lines."
                ) from error

    def _require_names(self) -> None:
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if not self.columns or twice or all(map(_is_number, self.columns)):
            found = f"names {', '.join(twice)} twice" if twice else f"is {self._header!r:.200}"
            raise DataError(
                f"{self.name}: the first line {found}, but it has to name the columns. Put a line "
                "with a name for each column at the top of the file."
            )


@contextmanager
def text_file(path: Path) -> Iterator[TextIO]:
    """A file of text, read as it is; a byte order mark is passed over.

    Raises:
        DataError: it is not there, or not UTF-8.
    """
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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
