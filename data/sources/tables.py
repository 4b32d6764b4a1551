"""Tables: a label or targets, and numbers or categories as columns.

Classes are sorted by name, numbers by value, so files with the same classes agree; `classes=a,b,c`
names them for files that lack some. A column of only numbers or missing cells is numeric and is
standardized; a missing one is its column's mean in the same file, and with any missing, each column
of numbers has another one of flags. Any other is categorical: a cell's code is its text's digest,
salted with the column's name, modulo the number of buckets. Files opened separately then agree
without a vocabulary. A missing category is a category of its own. `texts` reads columns of texts.

Shapes: N rows, D columns of numbers, C columns of categories, T targets.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.errors import ConfigError, DataError
from lipt.common.text import listed
from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.inputs.standardization import stored
from lipt.data.sources.cells import (
    Cell,
    ColumnReading,
    Decimals,
    Notation,
    common_notation,
    is_missing,
    number_in,
    read_cells,
    unread_in,
)
from lipt.data.sources.rows import (
    ColumnRows,
    Labels,
    impute,
    labels_of_names,
    labels_of_targets,
)
from lipt.data.sources.storage import Query, Stamp, split_query
from lipt.data.sources.table_files import CsvOptions, Table, open_table, require_columns
from lipt.data.sources.texts import bucket_of, token_columns
from lipt.data.targets.values import label_values, number_values

logger = logging.getLogger(__name__)

# A source has at most one; without any, the column `label` is a class.
_TARGETS = ("label", "target", "labels")
_OF_FEATURES = ("drop", "numbers", "categories", "buckets")
_OF_TEXT = ("text", "max_length", "tokenizer", "vocabulary", "names", "embedding")
_OPTIONS = (*_TARGETS, "classes", *_OF_FEATURES, *_OF_TEXT)
_DEFAULT_BUCKETS = 2**12

# A column with more distinct fractions is a measurement, not a class.
_MOST_FRACTIONS = 100
# As pandas writes them, and as other files and frames have them.
_TRUTH = {"True": "true", "False": "false"}


def table_rows(source: str, path: str) -> ColumnRows:
    """The rows of a table, whose format `source` begins with; Parquet also by a URL."""
    kind = source.partition(":")[0]
    path, query = split_query(
        source, path, (*_OPTIONS, *(CsvOptions.NAMES if kind == "csv" else ()))
    )
    with_text = "text" in query
    for name in _OF_FEATURES if with_text else _OF_TEXT:
        if name in query:
            raise ConfigError(
                f"{source}: the option {name} cannot be used "
                f"{'with' if with_text else 'without'} text=COLUMN. Leave it out."
            )
    given = [name for name in _TARGETS if name in query]
    if len(given) > 1:
        raise ConfigError(
            f"{source}: {' and '.join(given)} were given together. Name a class (label=), "
            "numbers (target=), or labels of which a row may have several (labels=)."
        )
    return rows_of_table(query, open_table(path, kind, query))


def rows_of_table(query: Query, table: Table, given: Labels | None = None) -> ColumnRows:
    """A table's rows by a source's options; labels that are not in the table are `given`."""
    stamp = Stamp.of(table.files) if table.files else None
    wanted = next((name for name in _TARGETS if name in query), "label")
    target_columns = (query.text("label", "label"),) if wanted == "label" else query.names(wanted)
    labels = _labels(query, table, wanted, target_columns) if given is None else given
    notes, flagged, texts = [table.note], False, query.names("text")
    if texts:
        columns, tensors = token_columns(query, table, len(labels.labels_N))
        read = {name: ColumnReading(name, "text") for name in texts}
        unused = sorted(set(table.columns) - {*target_columns, *texts})
        if unused and not table.files:
            notes.append(f"only the texts of {', '.join(texts)} are used, not {', '.join(unused)}")
    else:
        columns, tensors, read, missing = feature_columns(query, table, target_columns)
        flagged = bool(missing)
        notes.append(missing)
    names = labels.names if wanted == "label" and given is None else ()
    read |= {
        name: ColumnReading(name, wanted, num_different=len(names or ()), names=names or ())
        for name in target_columns
    }
    return ColumnRows(
        *(query.source, labels.names, labels.labels_N, columns, tensors),
        stamp=stamp,
        targets=labels.targets,
        note="; ".join(filter(None, notes)),
        flagged=flagged,
        reading=tuple(read.get(name, ColumnReading(name, "not used")) for name in table.columns),
    )


def _labels(query: Query, table: Table, wanted: str, columns: tuple[str, ...]) -> Labels:
    require_columns(table, columns, wanted)
    if wanted == "label":
        return Labels(*read_labels(table, columns[0], query.names("classes")))
    numbers = read_numbers(table, columns, required=columns)
    values_NT = torch.from_numpy(np.stack([numbers[name][0] for name in columns], axis=1))
    if wanted == "labels":
        return labels_of_targets(label_values(values_NT, columns, table.name), table.name)
    targets = number_values(values_NT, columns, table.name)
    return Labels(targets.strata_N, targets.strata_names, targets)


def read_labels(
    table: Table, column: str, classes: Sequence[str] = ()
) -> tuple[Tensor, tuple[str, ...]]:
    """The labels as numbers from 0, int64, and the class names."""
    chunks = table.chunks([column])
    labels = [_name(cell) for (cells,) in chunks for cell in cells]
    missing = [row for row, label in enumerate(labels) if not label]
    if missing:
        raise DataError(
            f"{table.name}: {len(missing)} of {len(labels)} rows have no label in the column "
            f"{column}: rows {listed(missing, 20)}. Label or remove them."
        )
    if not labels:
        raise DataError(f"{table.name} has no rows. Give the training data.")
    found = set(labels)
    fractions = [number for number in map(number_in, found) if number and not number.is_integer()]
    many = len(fractions) > _MOST_FRACTIONS or are_too_many(len(found), len(labels))
    if many and not classes:
        raise DataError(
            f"{table.name}: the column {column} holds {len(found)} different labels in "
            f"{len(labels)} rows, {len(fractions)} of them fractions. Name the column of the "
            f"classes, label=COLUMN; for regression write target={column}"
        )
    named = table.class_names.get(column, ())
    names = tuple(classes) or named or tuple(sorted(found, key=_order))
    # In a file that names its numbers, cells are numbers.
    cells_of_names = tuple(map(str, range(len(named)))) if named and not classes else names
    return labels_of_names(labels, cells_of_names, table.name)[0], names


def are_too_many(num_different: int, num_rows: int) -> bool:
    """Whether so many different labels are a measurement rather than classes."""
    return num_different > max(_MOST_FRACTIONS, num_rows // 2)


def _name(cell: Cell) -> str:
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell).strip()


def _order(name: str) -> tuple[bool, float, str]:
    """Sort key: numbers by value, then words alphabetically."""
    number = number_in(name)
    return number is None, number or 0.0, name


def feature_columns(
    query: Query, table: Table, target_columns: tuple[str, ...]
) -> tuple[tuple[Column, ...], dict[str, Tensor], dict[str, ColumnReading], str]:
    """Numbers and categories, how each was read, and a note on the missing numbers."""
    for option in ("drop", "numbers", "categories"):
        require_columns(table, query.names(option), option)
    excluded = {*target_columns, *query.names("drop")}
    # Sorted, so that column order does not matter.
    used = sorted(set(table.columns) - excluded)
    if not used:
        raise DataError(
            f"{table.name} has no column besides {', '.join(sorted(excluded))}. Give columns to "
            "learn from."
        )
    candidates = [name for name in used if name not in query.names("categories")]
    numbers = read_numbers(table, candidates, required=query.names("numbers"))
    categories = [name for name in used if name not in numbers]
    columns: list[Column] = []
    tensors: dict[str, Tensor] = {}
    readings: dict[str, ColumnReading] = {}
    note = ""
    if numbers:
        values = np.stack([numbers[name].values_N for name in sorted(numbers)], axis=1)
        values_ND, note = impute(stored(torch.from_numpy(values)))
        name = "numbers" if categories else ""
        columns.append(standardized_column(name, values_ND))
        tensors[name] = values_ND
        readings = {name: numbers[name].reading(name, table) for name in numbers}
    if categories:
        buckets = query.number("buckets", _DEFAULT_BUCKETS, minimum=2, maximum=2**24)
        name = "categories" if numbers else ""
        columns.append(Column(name, ColumnType.INT64, (len(categories),), num_values=buckets))
        tensors[name], read = read_categories(table, categories, buckets)
        readings |= {one.name: one for one in read}
    logger.info("%s", table.name)
    for one in readings.values():
        logger.info("  %s", one)
    return tuple(columns), tensors, readings, note


def standardized_column(name: str, values_NP: Tensor) -> Column:
    kind = ColumnType(str(values_NP.dtype).removeprefix("torch."))
    return Column(name, kind, tuple(values_NP.shape[1:]), standardized=True)


class NumberColumn(NamedTuple):
    """A numeric column, NaN where a cell is missing, and how its cells are written."""

    values_N: NDArray[np.float64]
    notation: Notation

    def reading(self, name: str, table: Table) -> ColumnReading:
        known_N = self.values_N[~np.isnan(self.values_N)]
        whole = bool((known_N == np.floor(known_N)).all())
        notation = Notation.DATE if name in table.dates else self.notation
        if notation in (Notation.WHOLE, Notation.POINT):
            notation = Notation.WHOLE if whole else Notation.POINT
        return ColumnReading(
            name,
            notation.value,
            num_rows=len(self.values_N),
            num_missing=len(self.values_N) - len(known_N),
            num_different=len(np.unique(known_N)) if notation is Notation.WHOLE else 0,
            bounds=(float(known_N.min()), float(known_N.max())) if len(known_N) else None,
        )


def read_numbers(
    table: Table, columns: Sequence[str], *, required: Sequence[str]
) -> dict[str, NumberColumn]:
    """The numeric columns among some."""
    parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in columns}
    notations: dict[str, set[Notation]] = {name: set() for name in columns}
    begin = 0
    for chunk in table.chunks(columns):
        for name, cells in zip(columns, chunk, strict=True):
            if name not in parts:
                continue
            read, seen = read_cells(cells, table.decimals), notations[name]
            if read is None or common_notation(seen | _known(read)) is None:
                if name in required:
                    row = _first_unread(cells, table.decimals, seen)
                    raise DataError(
                        f"{table.name}: the column {name} is to be of numbers, but holds "
                        f"{cells[row]!r:.80} in row {begin + row}. Correct the row, or do not name "
                        "the column in numbers="
                    )
                del parts[name]
                continue
            infinite_N = np.isinf(read[0])
            if infinite_N.any():
                row = int(infinite_N.argmax())
                raise DataError(
                    f"{table.name}: the column {name} holds {cells[row]!r:.40} in row "
                    f"{begin + row}, no finite number. Correct it, or take the column as "
                    f"categories: categories={name}"
                )
            parts[name].append(read[0])
            notations[name] = seen | _known(read)
        begin += len(chunk[0]) if chunk else 0
    # A column with only missing cells is categorical.
    return {
        name: NumberColumn(
            np.concatenate(values), common_notation(notations[name]) or Notation.POINT
        )
        for name, values in parts.items()
        if values and (name in required or not all(np.isnan(part).all() for part in values))
    }


def _known(read: tuple[object, Notation | None]) -> set[Notation]:
    return set() if read[1] is None else {read[1]}


def _first_unread(cells: Sequence[Cell], decimals: Decimals, seen: set[Notation]) -> int:
    for row, cell in enumerate(cells):
        read = read_cells([cell], decimals)
        seen = seen if read is None else seen | _known(read)
        if read is None or common_notation(seen) is None:
            return row
    return 0


def read_categories(
    table: Table, columns: Sequence[str], buckets: int
) -> tuple[Tensor, list[ColumnReading]]:
    """Categorical columns side by side, N x C, int64 in 0..buckets-1, and how each was read."""
    parts = list[NDArray[np.int64]]()
    codes = [dict[str, int]() for _ in columns]
    missing, unread = [0] * len(columns), [""] * len(columns)
    for chunk in table.chunks(columns):
        codes_NC = np.empty((len(chunk[0]), len(columns)), np.int64)
        for place, (name, cells) in enumerate(zip(columns, chunk, strict=True)):
            texts = ["" if is_missing(cell) else str(cell).strip() for cell in cells]
            known = codes[place]
            for text in texts:
                if text not in known:
                    known[text] = bucket_of(name, _TRUTH.get(text, text), buckets)
            codes_NC[:, place] = [known[text] for text in texts]
            missing[place] += texts.count("")
            if not parts:
                unread[place] = unread_in(cells, table.decimals)
        parts.append(codes_NC)
    codes_NC = np.concatenate(parts)
    return torch.from_numpy(codes_NC), [
        ColumnReading(
            name,
            "categories",
            num_rows=len(codes_NC),
            num_missing=missing[place],
            num_different=len(codes[place].keys() - {""}),
            unread=unread[place],
        )
        for place, name in enumerate(columns)
    ]
