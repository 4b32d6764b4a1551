"""Cells: what a table's file holds at one place, and what is taken for missing.

A file gives its cells in chunks of rows, column by column, and is read again for each pass: it
is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from lipt.common.data.sources.tables.query import did_you_mean
from lipt.common.errors import DataError

# None where the file has nothing there, also where it has a null or not-a-number.
Cell = str | int | float | None

CHUNK_ROWS = 8192

# As people and programs write it; in any case, and also with spaces around it.
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


class Table(Protocol):
    """A file, or several of one data set, by columns.

    Attributes:
        name: how messages call it.
        files: what it is read from.
        columns: their names in the file's order.
        class_names: by column, what its numbers stand for, where the file says so.
    """

    name: str
    files: Sequence[Path | str]
    columns: tuple[str, ...]
    class_names: Mapping[str, tuple[str, ...]]

    def chunks(self, names: Sequence[str]) -> Iterator[list[list[Cell]]]:
        """The cells of some columns, in chunks of rows: a list for each of `names`.

        Raises:
            DataError: the file is broken; the message says where.
        """
        ...


def is_missing(cell: Cell) -> bool:
    """Whether a cell holds nothing: one of NA, N/A, NaN, null, None, ? or spaces alone."""
    if cell is None:
        return True
    if isinstance(cell, str):
        return cell.strip().lower() in _MISSING
    return cell != cell  # noqa: PLR0124 - not-a-number alone differs from itself


def require_columns(table: Table, names: Sequence[str], option: str) -> None:
    """Check that columns are there.

    Raises:
        DataError: one is not; the message names those that are, and close ones first.
    """
    for name in names:
        if name not in table.columns:
            raise DataError(
                f"{table.name} has no column {name!r}.{did_you_mean(name, table.columns)} Its "
                f"columns are {', '.join(table.columns)}. Write {option}=COLUMN with one of them."
            )


def named_rows(rows: Sequence[int]) -> str:
    """The first 20 of some numbers of rows or lines, and how many there are."""
    more = f" and {len(rows) - 20} more" if len(rows) > 20 else ""
    return ", ".join(map(str, rows[:20])) + more
