"""Tables: a label or targets, and numbers or categories as columns.

Classes are sorted by name, numbers by value, so files with the same classes agree; `classes=a,b,c`
names them for files that lack some. A column of only numbers or missing cells is numeric and is
standardized; a missing one is its column's mean in the same file, and with any missing, each column
of numbers has another one of flags. Any other is categorical: a cell's code is its text's digest,
salted with the column's name, modulo the number of buckets. Files opened separately then agree
without a vocabulary. A missing category is a category of its own. `texts` reads columns of texts,
and `causal` those without a label.

Shapes: N rows, D columns of numbers, C columns of categories, T targets.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.errors import ConfigError, DataError
from lipt.common.text import listed
from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.inputs.standardization import stored
from lipt.data.sources.address import Address
from lipt.data.sources.cells import (
    CATEGORIES,
    ColumnReading,
    Decimals,
    Notation,
    first_unread,
    number_in,
    numbers_in,
    unread_in,
)
from lipt.data.sources.rows import (
    ColumnRows,
    Labels,
    impute,
    labels_of_names,
    labels_of_targets,
)
from lipt.data.sources.tables.causal import causal_rows
from lipt.data.sources.tables.csv_and_json import CSV_OPTIONS, CsvTable, JsonlTable
from lipt.data.sources.tables.parquet import ParquetTable
from lipt.data.sources.tables.table import (
    Table,
    coded,
    floats,
    is_text,
    known_texts,
    require_columns,
    sources_in,
)
from lipt.data.sources.tables.texts import bucket_of, token_columns
from lipt.data.targets.kinds import are_too_many
from lipt.data.targets.values import label_values, number_values

logger = logging.getLogger(__name__)

# A source has at most one; without any, the column `label` is a class.
_TARGETS = ("label", "target", "labels")
_OF_FEATURES = ("drop", "numbers", "categories", "buckets")
_OF_TEXT = (
    *("text", "prompt", "completion", "messages", "max_length", "tokenizer"),
    *("vocabulary", "names", "embedding"),
)
TABLE_OPTIONS = (*_TARGETS, "classes", "source", *_OF_FEATURES, *_OF_TEXT)
_DEFAULT_BUCKETS = 2**12

# A column with more distinct fractions is a measurement, not a class.
_MOST_FRACTIONS = 100
# As pandas writes them, and as other files and frames have them.
_TRUTH = {"True": "true", "False": "false"}


def open_table(address: Address) -> Table:
    """A table by the scheme csv, jsonl or parquet; only the last may be a URL."""
    if address.scheme == "csv":
        written = {name: address.text(name) for name in CSV_OPTIONS}
        return CsvTable(Path(address.path), **written)
    if address.scheme == "jsonl":
        return JsonlTable(Path(address.path))
    return ParquetTable(address.source, address.path)


def table_rows(address: Address) -> ColumnRows:
    with_text = not {"text", "completion", "messages"}.isdisjoint(address.values)
    for name in _OF_FEATURES if with_text else _OF_TEXT:
        if name in address:
            raise ConfigError(
                f"{address.source}: the option {name} cannot be used "
                f"{'with' if with_text else 'without'} text=COLUMN. Leave it out."
            )
    given = [name for name in _TARGETS if name in address]
    if len(given) > 1:
        raise ConfigError(
            f"{address.source}: {' and '.join(given)} were given together. Name a class (label=), "
            "numbers (target=), or labels of which a row may have several (labels=)."
        )
    return rows_of_table(address, open_table(address))


def rows_of_table(options: Address, table: Table, given: Labels | None = None) -> ColumnRows:
    """A table's rows by a source's options; labels that are not in the table are `given`."""
    if given is None and is_causal(options, table):
        return causal_rows(options, table)
    target_option = next((name for name in _TARGETS if name in options), "label")
    targets = (
        (options.text("label", "label"),)
        if target_option == "label"
        else options.names(target_option)
    )
    texts = options.names("text")
    notes, flagged = [table.note], False
    if given is None:
        require_columns(table, targets, target_option)
    source = [options.text("source")] if "source" in options else []
    require_columns(table, source, "source")
    if both := [name for name in source if name in targets]:
        raise ConfigError(
            f"{options.source}: the column {both[0]!r} is named as its source and as its target. "
            "Name another column as one of them."
        )
    beside = (*targets, *source)
    used = [] if texts else _used_columns(options, table, beside)
    # One pass over a file reads all columns but texts, which may be larger than the memory.
    cells = table.read([*used, *source, *(() if given else targets)])
    labels = _labels(options, table, target_option, targets, cells) if given is None else given
    if texts:
        columns, tensors = token_columns(options, table, len(labels.labels_N))
        read = {name: ColumnReading(name, "text") for name in texts}
        unused = sorted(set(table.columns) - {*beside, *texts})
        if unused and table.stamp is None:
            notes.append(f"only the texts of {', '.join(texts)} are used, not {', '.join(unused)}")
    else:
        columns, tensors, read, missing = _features(options, table, used, cells)
        flagged = bool(missing)
        notes.append(missing)
    names = labels.names if target_option == "label" and given is None else ()
    read |= {
        name: ColumnReading(name, target_option, num_different=len(names or ()), names=names or ())
        for name in targets
    }
    read |= {name: ColumnReading(name, "source") for name in source}
    return ColumnRows(
        *(options.source, labels.names, labels.labels_N, columns, tensors),
        stamp=table.stamp,
        targets=labels.targets,
        sources=sources_in(table, source[0], cells[source[0]]) if source else None,
        note="; ".join(filter(None, notes)),
        flagged=flagged,
        reading=tuple(read.get(name, ColumnReading(name, "not used")) for name in table.columns),
    )


def is_causal(options: Address, table: Table) -> bool:
    """Whether a table holds texts of which each next token is to be predicted."""
    if not {"completion", "prompt", "messages"}.isdisjoint(options.values):
        return True
    labelled = any(name in options for name in _TARGETS) or "label" in table.columns
    return "text" in options and not labelled


Cells = dict[str, pa.ChunkedArray]


def _labels(
    options: Address, table: Table, target_option: str, columns: tuple[str, ...], cells: Cells
) -> Labels:
    if target_option == "label":
        classes = options.names("classes")
        return Labels(*read_labels(table, columns[0], cells[columns[0]], classes))
    numbers = [read_numbers(table, name, cells[name], required=True) for name in columns]
    values_NT = torch.from_numpy(np.stack([each.values_N for each in numbers if each], axis=1))
    if target_option == "labels":
        return labels_of_targets(label_values(values_NT, columns, table.name), table.name)
    targets = number_values(values_NT, columns, table.name)
    return Labels(targets.strata_N, targets.strata_names, targets)


def read_labels(
    table: Table, name: str, column: pa.ChunkedArray, classes: Sequence[str] = ()
) -> tuple[Tensor, tuple[str, ...]]:
    """The labels as numbers from 0, int64, and the class names."""
    codes_N, values = coded(column, missing=("",))
    missing_N = codes_N < 0
    if missing_N.any():
        rows = np.flatnonzero(missing_N).tolist()
        raise DataError(
            f"{table.name}: {len(rows)} of {len(codes_N)} rows have no label in the column "
            f"{name}: rows {listed(rows, 20)}. Label or remove them."
        )
    if not values:
        raise DataError(f"{table.name} has no rows. Give the training data.")
    texts = [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values]
    fractions = [number for number in map(number_in, texts) if number and not number.is_integer()]
    many = len(fractions) > _MOST_FRACTIONS or are_too_many(len(texts), len(codes_N))
    if many and not classes:
        raise DataError(
            f"{table.name}: the column {name} holds {len(texts)} different labels in "
            f"{len(codes_N)} rows, {len(fractions)} of them fractions. Name the column of the "
            f"classes, label=COLUMN; for regression write target={name}"
        )
    named = table.class_names.get(name, ())
    names = tuple(classes) or named or tuple(sorted(texts, key=_order))
    # In a file that names its numbers, cells are numbers.
    cells_of_names = tuple(map(str, range(len(named)))) if named and not classes else names
    labels = [texts[code] for code in codes_N.tolist()]
    return labels_of_names(labels, cells_of_names, table.name)[0], names


def _order(name: str) -> tuple[bool, float, str]:
    """Sort key: numbers by value, then words alphabetically."""
    number = number_in(name)
    return number is None, number or 0.0, name


def _used_columns(options: Address, table: Table, targets: tuple[str, ...]) -> list[str]:
    for option in ("drop", "numbers", "categories"):
        require_columns(table, options.names(option), option)
    excluded = {*targets, *options.names("drop")}
    # Sorted, so that column order does not matter.
    used = sorted(set(table.columns) - excluded)
    if not used:
        raise DataError(
            f"{table.name} has no column besides {', '.join(sorted(excluded))}. Give columns to "
            "learn from."
        )
    return used


def _features(
    options: Address, table: Table, used: Sequence[str], cells: Cells
) -> tuple[tuple[Column, ...], dict[str, Tensor], dict[str, ColumnReading], str]:
    """Numbers and categories, how each was read, and a note on the missing numbers."""
    columns: list[Column] = []
    tensors: dict[str, Tensor] = {}
    readings: dict[str, ColumnReading] = {}
    # A column beside another: those that turn out to be categories take no memory.
    numbers_DN, note = np.empty((len(used), len(cells[used[0]]))), ""
    for name in used:
        required = name in options.names("numbers")
        if name in options.names("categories"):
            continue
        if numbers := read_numbers(table, name, cells[name], required=required):
            numbers_DN[len(readings)] = numbers.values_N
            readings[name] = numbers.reading(name)
            del cells[name]
    categories = [name for name in used if name not in readings]
    if readings:
        values_ND = stored(torch.from_numpy(numbers_DN[: len(readings)]).T).contiguous()
        # Both are as large as the data.
        del numbers_DN
        pa.default_memory_pool().release_unused()
        values_ND, note = impute(values_ND)
        name = "numbers" if categories else ""
        columns.append(standardized_column(name, values_ND))
        tensors[name] = values_ND
    if categories:
        buckets = options.number("buckets", _DEFAULT_BUCKETS, minimum=2, maximum=2**24)
        name = "categories" if tensors else ""
        columns.append(Column(name, ColumnType.INT64, (len(categories),), num_values=buckets))
        read = [read_categories(table, each, cells.pop(each), buckets) for each in categories]
        tensors[name] = torch.from_numpy(np.stack([codes_N for codes_N, _ in read], axis=1))
        readings |= {column_reading.name: column_reading for _, column_reading in read}
    logger.info("%s", table.name)
    for column_reading in readings.values():
        logger.info("  %s", column_reading)
    return tuple(columns), tensors, readings, note


def standardized_column(name: str, values_NP: Tensor) -> Column:
    shape = tuple(values_NP.shape[1:])
    return Column(name, ColumnType.of(values_NP.dtype), shape, standardized=True)


class NumberColumn(NamedTuple):
    """A numeric column, NaN where a cell is missing, and how its cells are written."""

    values_N: NDArray[np.float64]
    notation: Notation

    def reading(self, name: str) -> ColumnReading:
        known_N = self.values_N[~np.isnan(self.values_N)]
        whole = bool((known_N == np.floor(known_N)).all())
        is_whole = self.notation is Notation.POINT and whole
        return ColumnReading(
            name,
            (Notation.WHOLE if is_whole else self.notation).value,
            num_rows=len(self.values_N),
            num_missing=len(self.values_N) - len(known_N),
            num_different=len(np.unique(known_N)) if is_whole else 0,
            bounds=(float(known_N.min()), float(known_N.max())) if len(known_N) else None,
        )


def read_numbers(
    table: Table, name: str, column: pa.ChunkedArray, *, required: bool = False
) -> NumberColumn | None:
    """A column as numbers; None if it is no numeric one, or has only missing cells."""
    if is_text(column):
        known = known_texts(column)
        numbers = _numbers_of_texts(known, table.decimals)
    else:
        is_date = pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
        is_time = pa.types.is_time(column.type)
        notation = Notation.DATE if is_date else Notation.TIME if is_time else Notation.POINT
        numbers = NumberColumn(floats(column), notation)
    if numbers is None and required:
        codes_N, texts = coded(known)
        cell, row = _cell_at(column, codes_N == first_unread(texts, table.decimals))
        raise DataError(
            f"{table.name}: the column {name} is to be of numbers, but holds {cell!r:.80} in row "
            f"{row}. Correct the row, or do not name the column in numbers="
        )
    if numbers is None or (not required and np.isnan(numbers.values_N).all()):
        return None
    infinite_N = np.isinf(numbers.values_N)
    if infinite_N.any():
        cell, row = _cell_at(column, infinite_N)
        raise DataError(
            f"{table.name}: the column {name} holds {cell!r:.40} in row {row}, no finite number. "
            f"Correct it, or take the column as categories: categories={name}"
        )
    return numbers


def _numbers_of_texts(known: pa.ChunkedArray, decimals: Decimals) -> NumberColumn | None:
    if decimals.mark != ",":
        with suppress(pa.ArrowInvalid):  # another notation, or one that Python alone reads: 1_000
            return NumberColumn(floats(pc.cast(known, pa.float64())), Notation.POINT)
    codes_N, texts = coded(known)
    read = numbers_in(texts, decimals)
    return None if read is None else NumberColumn(np.array([*read[0], np.nan])[codes_N], read[1])


def _cell_at(column: pa.ChunkedArray, is_one_N: NDArray[np.bool_]) -> tuple[object, int]:
    """The first of some cells, and its row."""
    row = int(is_one_N.argmax())
    return column[row].as_py(), row


def read_categories(
    table: Table, name: str, column: pa.ChunkedArray, buckets: int
) -> tuple[NDArray[np.int64], ColumnReading]:
    """A categorical column, N int64 in 0..buckets-1, and how it was read."""
    codes_N, values = coded(column)
    texts = list(map(str, values))
    # A missing category is the empty text.
    buckets_V = [bucket_of(name, _TRUTH.get(text, text), buckets) for text in (*texts, "")]
    return np.array(buckets_V)[codes_N], ColumnReading(
        name,
        CATEGORIES,
        num_rows=len(codes_N),
        num_missing=int((codes_N < 0).sum()),
        num_different=len(texts),
        unread=unread_in(texts, table.decimals),
    )
