"""Objects: rows of a user's table as JSON objects, with all their columns, as trainers read them.

A line of a JSONL file is copied, so its numbers keep every digit. Cells of a CSV file stay texts.
Other values become JSON's: a missing cell is null, as is NaN; dates are in ISO 8601; a decimal
number is a text with all its digits; a duration is in seconds.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lipt.common.errors import DataError
from lipt.data.dataset import Dataset
from lipt.data.registry import table_address
from lipt.data.sources.address import at_home
from lipt.data.sources.frames import is_hugging_face
from lipt.data.sources.tables.csv_and_json import JsonlTable
from lipt.data.sources.tables.reading import open_table
from lipt.data.sources.tables.table import Table, batches_of, is_absent, require_names

# Dictionaries of some rows.
Records = Callable[[list[int]], list[dict[str, Any]]]


class RowObject(NamedTuple):
    """A row's names, and its JSON object as text."""

    names: Collection[str]
    text: str

    def adding(self, more: Mapping[str, Any]) -> str:
        """The text with more names at its end; DataError where the row has one of them."""
        if taken := [name for name in more if name in self.names]:
            raise DataError(
                f"the data has a column {taken[0]!r}, which is added to the chosen rows. Rename "
                "the data's column."
            )
        added = ", ".join(
            f"{json.dumps(name)}: {json.dumps(value)}" for name, value in more.items()
        )
        comma = ", " if self.names and added else ""
        return f"{self.text[:-1]}{comma}{added}}}"


def chosen_objects(data: Any, rows: Sequence[int], *, num_rows: int) -> Iterator[RowObject]:
    """Yield some rows of a table.

    Args:
        data: a table's file by name, such as `jsonl:pool.jsonl?text=text`, or a frame: of pandas,
            polars or pyarrow, columns or rows by name, a Hugging Face `datasets.Dataset`.
        rows: row numbers, ascending.
        num_rows: how many rows the data has.

    Raises:
        DataError: the data has no named columns or other rows, or a value is none of JSON's.
    """
    name = str(data.source if isinstance(data, Dataset) else data)
    named = isinstance(data, Dataset | str | Path)
    address = table_address(name) if named else None
    if address is not None:
        yield from _of_file(open_table(address), rows, num_rows)
        return
    records = _records(data)
    if records is None:
        raise DataError(
            f"{name if named else f'a {type(data).__name__}':.100} has no rows with named columns. "
            "Give the JSONL, CSV or Parquet file, the data frame, the list of dictionaries or the "
            "Hugging Face data set."
        )
    _require_number(len(_first_column(data)), num_rows, f"the {type(data).__name__}")
    for some in batches_of(iter(rows)):
        for row, record in zip(some, records(some), strict=True):
            yield _object(record, f"row {row}")


def require_other_file(path: Path, *data: Any) -> None:
    """Refuse to write over a table's file; DataError. Data in memory has none."""
    for source_data in data:
        if not isinstance(source_data, Dataset | str | Path):
            continue
        address = table_address(
            str(source_data.source if isinstance(source_data, Dataset) else source_data)
        )
        if address is not None and path.resolve() == Path(at_home(address.path)).resolve():
            raise DataError(f"{path} is the data itself, and would be lost. Name another file.")


def _of_file(table: Table, rows: Sequence[int], num_rows: int) -> Iterator[RowObject]:
    chosen_rows, num_seen = deque(rows), 0
    if isinstance(table, JsonlTable):
        objects = ((record, text) for _, record, text in table.lines())
    else:
        objects = ((record, "") for record in table.objects())
    for num_seen, (record, text) in enumerate(objects, start=1):
        if chosen_rows and chosen_rows[0] == num_seen - 1:
            row = chosen_rows.popleft()
            yield RowObject(record, text) if text else _object(record, f"{table.name}, row {row}")
    _require_number(num_seen, num_rows, table.name)


def _require_number(count: int, num_rows: int, name: str) -> None:
    if count != num_rows:
        raise DataError(
            f"{name} has {count} rows, and the examples were chosen from {num_rows}. Give the data "
            "that they were chosen from, whole and in its order."
        )


def _first_column(data: Any) -> Any:
    return next(iter(data.values()), ()) if isinstance(data, Mapping) else data


def _records(data: Any) -> Records | None:
    """A function that returns rows of data in memory; None without named columns."""
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        names = [str(name) for name in data.columns]
        require_names(names, "the table")
        return lambda rows: _zipped(names, [c.iloc[rows].tolist() for _, c in data.items()])
    if is_hugging_face(data):
        return lambda rows: data.select(rows).with_format("arrow")[:].to_pylist()
    if hasattr(data, "__arrow_c_stream__") and hasattr(data, "columns"):
        table = pa.table(data)
        require_names(table.column_names, "the table")
        return lambda rows: table.take(pa.array(rows, pa.int64())).to_pylist()
    names = list(getattr(getattr(data, "dtype", None), "names", None) or ())
    if names or isinstance(data, Mapping):
        names = names or list(data)
        return lambda rows: _zipped(
            list(map(str, names)), [[data[name][row] for row in rows] for name in names]
        )
    if isinstance(data, list) and all(isinstance(row, Mapping) for row in data):
        return lambda rows: [{str(name): cell for name, cell in data[row].items()} for row in rows]
    return None


def _zipped(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _object(record: Mapping[str, Any], where: str) -> RowObject:
    cells = {name: _value(cell, where, name) for name, cell in record.items()}
    text = json.dumps(cells, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a character, which JSON can hold by its number
        text = json.dumps(cells, allow_nan=False)
    return RowObject(cells.keys(), text)


def _value(cell: Any, where: str, name: str) -> Any:
    """A cell in JSON's types."""
    if isinstance(cell, Mapping):
        return {str(key): _value(part, where, name) for key, part in cell.items()}
    if isinstance(cell, list | tuple | np.ndarray):
        return [_value(part, where, name) for part in cell]
    single = _single(cell)
    is_infinite = isinstance(single, float) and math.isinf(single)
    if is_infinite or not (single is None or isinstance(single, str | bool | int | float)):
        what = cell if is_infinite else type(cell).__name__
        raise DataError(
            f"{where}: the column {name} holds {what}, which JSON does not have. Replace such "
            "cells, or leave the column out."
        )
    return single


def _single(cell: Any) -> Any:
    if isinstance(cell, np.datetime64):
        cell = cell.astype("datetime64[us]")
    if isinstance(cell, np.generic):
        cell = cell.item()
    if is_absent(cell):
        return None
    if isinstance(cell, date | time):
        return cell.isoformat()
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    return str(cell) if isinstance(cell, Decimal) else cell
