"""Table: the columns of a file or a frame as Arrow arrays, read in batches of rows.

A column is numbers, dates, times and durations, or texts. Booleans are the texts true and false. A
null is a missing cell, as is NaN.

Shapes: N rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import count, islice
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from lipt.common.errors import DataError
from lipt.common.text import did_you_mean
from lipt.data.sources.cells import MISSING, Decimals
from lipt.data.sources.rows import SourceLabels, source_names
from lipt.data.sources.storage import Stamp

BATCH_ROWS = 8192
_JOINED_BATCHES, _LARGE_BYTES = 32, 2**30
TEXT = pa.string()
_TEXTS = (TEXT, pa.large_string())
# A spreadsheet's.
MOST_COLUMNS = 16_384
_LONGEST_NAME = 1000

# None for a null, NaN or absent value.
Cell = str | int | float | None
RowT = TypeVar("RowT")
# A column as it is read.
ColumnT = TypeVar("ColumnT")
Codes = NDArray[np.int64]

# Types of pandas, which need not be installed.
_NO_VALUES = frozenset({"NAType", "NaTType"})
_INTERVALS = frozenset({"Interval", "Period"})
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class Table(ABC):
    """A data set's table, by columns; `stamp` is that of its files before reading."""

    name: str
    stamp: Stamp | None = None
    columns: tuple[str, ...]
    class_names: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    decimals = Decimals()
    # What was recognized in the file, a clause.
    note = ""

    @abstractmethod
    def batches(self, names: Sequence[str]) -> Iterator[list[Any]]:
        """Batches of rows, with an array, which may have chunks, for each of `names`."""

    def objects(self) -> Iterator[dict[str, Any]]:
        """All rows with all their columns, cells as the file has them."""
        for columns in self.batches(self.columns):
            for cells in zip(*(column.to_pylist() for column in columns), strict=True):
                yield dict(zip(self.columns, cells, strict=True))

    def texts(self, names: Sequence[str]) -> Iterator[list[list[str]]]:
        """Batches of rows, with the texts of each of `names`; a missing cell's is empty."""
        for batch in self.batches(names):
            yield [_as_texts(column.to_pylist()) for column in batch]

    def cells(self, name: str) -> Iterator[tuple[str, Any]]:
        """Each cell of a column, also lists and objects, with its place for messages."""
        rows = (cell for (column,) in self.batches([name]) for cell in column.to_pylist())
        for row, cell in enumerate(rows):
            yield f"{self.name}, row {row}", cell

    def read(self, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        parts: list[list[Any]] = [[] for _ in names]
        batches = self.batches(names) if names else iter(())
        while some := list(islice(batches, _JOINED_BATCHES)):
            for of_column, given in zip(parts, zip(*some, strict=True), strict=True):
                joined = joined_chunks(given)
                # Many small arrays would scatter the memory.
                small = joined.nbytes < _LARGE_BYTES
                of_column.append(joined.combine_chunks() if small else joined)
        return dict(zip(names, map(joined_chunks, parts), strict=True))


class TableOfCells(Table):
    """A table whose cells have types of their own, so that texts are read as they are written."""

    @abstractmethod
    def _read(self, names: Sequence[str], read: Callable[..., ColumnT]) -> Iterator[list[ColumnT]]:
        """Batches of rows; `read` has the arguments of `column_of`."""

    def batches(self, names: Sequence[str]) -> Iterator[list[Any]]:
        return self._read(names, column_of)

    def texts(self, names: Sequence[str]) -> Iterator[list[list[str]]]:
        return self._read(names, texts_of)


def require_columns(table: Table, names: Sequence[str], option: str) -> None:
    for name in names:
        if not table.columns:
            raise DataError(f"{table.name} has no rows. Give at least one.")
        if name not in table.columns:
            raise DataError(
                f"{table.name} has no column {name!r}.{did_you_mean(name, table.columns)} Write "
                f"{option}=COLUMN with one of {', '.join(table.columns)}."
            )


def require_names(columns: Collection[str], name: str) -> None:
    """Refuse too many columns, two of one name, and names that are no texts."""
    if len(columns) > MOST_COLUMNS:
        raise DataError(
            f"{name} has more than {MOST_COLUMNS} columns, {next(iter(columns))!r:.80} is the "
            "first. Give a row to each example, and many numbers as one tensor (features:PATH)."
        )
    twice = sorted(column for column, number in Counter(iter(columns)).items() if number > 1)
    if twice:
        raise DataError(
            f"{name} has the column {twice[0]!r:.80} more than once. Give each column its own name."
        )
    for column in columns:
        require_text(column, f"{name}: the name of a column")
        if len(column) > _LONGEST_NAME:
            raise DataError(
                f"{name} has a column whose name has {len(column)} characters, {column!r:.40}. "
                f"Give names of at most {_LONGEST_NAME}."
            )


def batches_of(rows: Iterator[RowT]) -> Iterator[list[RowT]]:
    while batch := list(islice(rows, BATCH_ROWS)):
        yield batch


def column_of(
    values: Any, where: str, name: str, first: int | None = None
) -> pa.Array | pa.ChunkedArray:
    """Values of a frame, an array or a list as a column: numbers, or else texts.

    `first` is the number of the first object of a file, for messages.
    """
    if isinstance(values, pa.ChunkedArray):
        return joined_chunks([arrow_column(part, where, name) for part in values.chunks])
    # What Arrow cannot hold in one type, such as numbers and texts, is read cell by cell.
    with suppress(pa.ArrowException, OverflowError, TypeError, UnicodeError, DataError):
        return arrow_column(pa.array(values, from_pandas=True), where, name)
    return _texts(_cells_of(values, where, name, first))


def texts_of(values: Any, where: str, name: str, first: int | None = None) -> list[str]:
    """As `column_of`, as texts: a whole number has no decimals, whatever is beside it."""
    if isinstance(values, list) or str(getattr(values, "dtype", "")) == "object":
        return _as_texts(_cells_of(values, where, name, first))
    return _as_texts(column_of(values, where, name, first).to_pylist())


def _cells_of(values: Any, where: str, name: str, first: int | None) -> list[Cell]:
    places = (where if first is None else f"{where}, object {row}" for row in count(first or 0))
    cells = values.tolist() if hasattr(values, "tolist") else values
    return [_cell_of(cell, at, name) for cell, at in zip(cells, places, strict=False)]


def _as_texts(cells: Sequence[object]) -> list[str]:
    return ["" if cell is None else str(cell) for cell in cells]


def _texts(cells: Sequence[Cell]) -> pa.Array:
    return pa.array([None if cell is None else str(cell) for cell in cells], TEXT)


def arrow_column(column: pa.Array, where: str, name: str) -> pa.Array:
    """An Arrow array as a column."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return arrow_column(column.cast(kind.value_type), where, name)
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
    if numbers or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)):
        return column
    if pa.types.is_decimal(kind):
        return column.cast(pa.string()).cast(pa.float64())
    if is_text(column):
        return column
    view = str(kind) == "string_view"
    if view or pa.types.is_boolean(kind) or column.null_count == len(column):
        return column.cast(pa.large_string() if view else TEXT)
    raise _refused(f"a {kind}", where, name)


def _cell_of(value: Any, where: str, name: str) -> Cell:
    """A value beside others of another type; dates become text, as they are in a CSV file."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if is_absent(value):
        return None
    if isinstance(value, str):
        require_text(value, f"{where}: the column {name}")
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date | time | Decimal) or type(value).__name__ in _INTERVALS:
        return str(value).removesuffix(" 00:00:00")
    raise _refused(f"a {type(value).__name__}", where, name)


def is_absent(value: object) -> bool:
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or type(value).__name__ in _NO_VALUES or is_nan


def _refused(what: str, where: str, name: str) -> DataError:
    return DataError(
        f"{where}: the column {name} holds {what}. Give a text or a number, or "
        f"leave the column out, as drop={name} does for a file."
    )


def require_text(text: str, what: str) -> None:
    """Refuse half characters (lone surrogates), which JSON can hold and no file can."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what} holds {text!r:.60}, with half of a character at {error.start}. Write the file "
            "as UTF-8, without single surrogates such as \\ud800."
        ) from None


def is_text(column: pa.Array | pa.ChunkedArray) -> bool:
    return column.type in _TEXTS


def joined_chunks(given: Sequence[Any]) -> pa.ChunkedArray:
    """A column's parts in one type: texts where only some are numbers."""
    parts = [piece for part in given for piece in getattr(part, "chunks", [part])]
    kinds = {part.type for part in parts} - {pa.null()}
    kind = next(iter(kinds), TEXT)
    if len(kinds) > 1 and kinds.isdisjoint(_TEXTS):
        kind, parts = pa.float64(), [pa.array(floats(part), from_pandas=True) for part in parts]
    elif len(kinds) > 1:
        kind, parts = TEXT, [_texts(part.to_pylist()) for part in parts]
    return pa.chunked_array([part.cast(kind) for part in parts], kind)


def floats(column: pa.Array | pa.ChunkedArray) -> NDArray[np.float64]:
    """A column of no texts as numbers, NaN where missing; dates, times and durations in seconds."""
    if isinstance(column, pa.ChunkedArray):
        return np.concatenate([np.empty(0), *map(floats, column.chunks)])
    if not pa.types.is_temporal(column.type):
        given = column.to_numpy(zero_copy_only=False)
        values_N: NDArray[np.float64] = given.astype(np.float64)
        return values_N
    whole = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    days = pa.types.is_date32(column.type)
    unit = 1 if days else _UNITS[getattr(column.type, "unit", "ms")]
    # Python's dates end with the year 9999.
    whole_N, rest_N = np.divmod(whole.fill_null(0).to_numpy().astype(np.int64), unit)
    seconds_N = (whole_N + rest_N / unit) * (86_400 if days else 1)
    return np.where(column.is_null().to_numpy(zero_copy_only=False), np.nan, seconds_N)


def known_texts(column: pa.ChunkedArray, missing: Sequence[str] = MISSING) -> pa.ChunkedArray:
    """The texts of a column without the spaces around them, null where they mean a missing cell."""
    trimmed = pc.utf8_trim_whitespace(column)
    is_missing = pc.is_in(pc.utf8_lower(trimmed), value_set=pa.array(missing, column.type))
    return pc.if_else(is_missing, pa.scalar(None, column.type), trimmed)


def coded(column: pa.ChunkedArray, missing: Sequence[str] = MISSING) -> tuple[Codes, list[Any]]:
    """Each cell's place among the different values, N, -1 where it is missing; and these values."""
    if is_text(column):
        # One array may hold more than 2 GiB.
        column = known_texts(column, missing).cast(pa.large_string())
    elif not pa.types.is_integer(column.type):
        column = pa.chunked_array([pa.array(floats(column), from_pandas=True)])
    encoded = column.combine_chunks().dictionary_encode()
    codes_N: Codes = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
    return codes_N, encoded.dictionary.to_pylist()


def read_sources(table: Table, name: str) -> SourceLabels | None:
    """Each row's source, by the column of that name; None without a name."""
    if not name:
        return None
    require_columns(table, (name,), "source")
    return sources_in(table, name, table.read([name])[name])


def sources_in(table: Table, name: str, column: pa.ChunkedArray) -> SourceLabels:
    """Each row's source, sorted by name; rows without one are of the source "missing"."""
    codes_N, values = coded(column)
    whole = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
    known = dict(enumerate(table.class_names.get(name, ())))
    texts = ["missing", *(str(known.get(value, value)) for value in whole)]
    used = sorted({texts[code + 1] for code in np.unique(codes_N).tolist()})
    names = source_names(used, f"{table.name}: the column {name}")
    places = torch.tensor([used.index(text) if text in used else -1 for text in texts])
    return SourceLabels(names, places[torch.from_numpy(codes_N + 1)])
