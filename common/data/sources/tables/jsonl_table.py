"""JSON lines: an object of names and values on each line, UTF-8, also gzipped.

The columns are the names of all lines, in the order in which they come up; what a line lacks is
missing there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lipt.common.data.sources.tables.cells import CHUNK_ROWS, Cell
from lipt.common.data.sources.tables.csv_table import text_file
from lipt.common.errors import DataError


class JsonlTable:
    """A file with one table."""

    def __init__(self, path: Path) -> None:
        """Read the names on all lines.

        Raises:
            DataError: there is no such file, or a line is no object of texts and numbers.
        """
        self.name = str(path)
        self.files: Sequence[Path | str] = (path,)
        self.class_names: Mapping[str, tuple[str, ...]] = {}
        self._path = path
        # A dictionary keeps the order, and a set does not.
        self.columns = tuple(dict.fromkeys(name for line in self._objects() for name in line))

    def chunks(self, names: Sequence[str]) -> Iterator[list[list[Cell]]]:
        """The cells of some columns."""
        rows: list[list[Cell]] = []
        for number, line in enumerate(self._objects(), start=1):
            rows.append([self._cell(line.get(name), name, number) for name in names])
            if len(rows) == CHUNK_ROWS:
                yield [list(column) for column in zip(*rows, strict=True)]
                rows = []
        if rows:
            yield [list(column) for column in zip(*rows, strict=True)]

    def _objects(self) -> Iterator[dict[str, Any]]:
        with text_file(self._path) as file:
            for number, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise DataError(
                        f"{self.name}, line {number} is not JSON: {error}. Write one object on "
                        "each line."
                    ) from error
                if not isinstance(line, dict):
                    raise DataError(
                        f"{self.name}, line {number} is a {type(line).__name__}. Write one object "
                        'on each line, such as {"text": "...", "label": "..."}.'
                    )
                yield line

    def _cell(self, value: Any, name: str, number: int) -> Cell:
        if isinstance(value, bool):
            return str(value).lower()
        if value is None or isinstance(value, str | int | float):
            return value
        raise DataError(
            f"{self.name}, object {number}: {name} is a {type(value).__name__}. Give a text or a "
            f"number, or leave the column out: drop={name}"
        )
