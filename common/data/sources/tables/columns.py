"""Columns of a table: labels, features and targets."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.data.sources.tables.files import (
    Cell,
    Table,
    is_missing,
    named_rows,
    require_columns,
)
from lipt.common.data.sources.tables.query import Query
from lipt.common.errors import ConfigError, DataError
from lipt.common.targets.values import TargetValues, label_values, number_values

# Labels: a table's column of classes as numbers, which are the classes' places in their order.
#
# Classes are in the order of their names, those that look like numbers by value, so that a training
# and a test file agree where both have all of them; `classes=a,b,c` says them for files that do
# not.
#
# Shapes: N rows.

# A column of more fractions than this is measured, not chosen from a list.
_MOST_FRACTIONS = 100
_TAKEN = "A label is one class for each row, from a list of classes"


def read_labels(
    table: Table, column: str, classes: Sequence[str] = ()
) -> tuple[Tensor, tuple[str, ...]]:
    """The labels as numbers from 0, and the classes' names.

    Args:
        table: where they are.
        column: one of its columns.
        classes: their names in the order of their numbers; empty takes those that there are.

    Returns:
        labels_N, int64, and the names.

    Raises:
        DataError: rows lack a label or have one that is no class, or the column holds measured
            numbers.
    """
    codes, found = _coded(table, column)
    named = table.class_names.get(column, ())
    if not classes:
        _require_classes(found, len(codes), table, column)
    names = tuple(classes) or named or tuple(sorted(found, key=_order))
    # In a file that has names for its numbers the cells are numbers.
    cells = map(str, range(len(named))) if named and not classes else names
    known = {cell: place for place, cell in enumerate(cells)}
    unknown = [name for name in found if name not in known]
    if unknown:
        rows = np.flatnonzero(np.asarray(codes) == found[unknown[0]]).tolist()
        raise DataError(
            f"{table.name}: {len(unknown)} labels of the column {column} are none of the "
            f"{len(known)} classes, the first of them {unknown[0]!r:.80} in the rows "
            f"{named_rows(rows)}. Correct them, or name all classes: classes=a,b,c"
        )
    place_of = np.array([known[name] for name in found], dtype=np.int64)
    return torch.from_numpy(place_of[np.asarray(codes, dtype=np.int64)]), names


def _coded(table: Table, column: str) -> tuple[array[int], dict[str, int]]:
    """Every row's label by its place among those that came up, and these places."""
    codes, found = array("q"), dict[str, int]()
    missing: list[int] = []
    for (cells,) in table.chunks([column]):
        for cell in cells:
            name = _name(cell)
            if not name:
                missing.append(len(codes))
            codes.append(found.setdefault(name, len(found)))
    if missing:
        raise DataError(
            f"{table.name}: {len(missing)} of {len(codes)} rows have no label in the column "
            f"{column}: rows {named_rows(missing)}. Label or remove them."
        )
    if not codes:
        raise DataError(f"{table.name} has no rows. Name the file that holds the training data.")
    return codes, found


def _name(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def _require_classes(found: dict[str, int], num_rows: int, table: Table, column: str) -> None:
    numbers = [_number(name) for name in found]
    fractions = sum(number is not None and not number.is_integer() for number in numbers)
    if fractions > _MOST_FRACTIONS:
        raise DataError(
            f"{table.name}: the column {column} holds {len(found)} different numbers, "
            f"{fractions} of them fractions: it is measured, which is regression. {_TAKEN}. For "
            f"regression write target={column}, or name another column."
        )
    if len(found) > max(_MOST_FRACTIONS, num_rows // 2):
        raise DataError(
            f"{table.name}: the column {column} holds {len(found)} different labels in {num_rows} "
            f"rows. {_TAKEN}. Name the column of the classes: label=COLUMN"
        )


def _number(name: str) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None


def _order(name: str) -> tuple[bool, float, str]:
    """Numbers by value, before words by their letters."""
    number = _number(name)
    return number is None, 0.0 if number is None else number, name


# Features of a table: numbers as they are, everything else as categories.
#
# A column is of numbers where all its cells are, but for missing ones. They become the example's
# `numbers`, which the pipeline standardizes. Every other column is of categories: a cell's code is
# its text's digest, salted with its column's name, modulo the number of buckets, so that files that
# are opened apart agree without a vocabulary, and one table of embeddings serves all columns. Two
# texts of a column share a code with a probability of 1 in so many buckets.
#
# A missing category is a category. A missing number is the mean of the others in its column of the
# same file, which is 0 once standardized; with `missing=marked` every column of numbers is followed
# by one that is 1 where it was missing, and else 0.
#
# Shapes: N rows, D columns of numbers, C columns of categories.

_LARGEST = float(np.finfo(np.float32).max)


def read_numbers(
    table: Table, columns: Sequence[str], *, required: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """Those of some columns that are of numbers, not-a-number where a cell is missing.

    Args:
        table: where they are.
        columns: their names.
        required: those that have to be of numbers.

    Returns:
        N values by column.

    Raises:
        DataError: a required column has another cell, or a number is infinite.
    """
    parts: dict[str, list[NDArray[np.float32]]] = {name: [] for name in columns}
    begin = 0
    for chunk in table.chunks(columns):
        for name, cells in zip(columns, chunk, strict=True):
            if name not in parts:
                continue
            values = _numbers(cells)
            if values is None and name in required:
                at, cell = next(
                    (at, cell) for at, cell in enumerate(cells) if _numbers([cell]) is None
                )
                raise DataError(
                    f"{table.name}: the column {name} is to be of numbers, but holds {cell!r:.80} "
                    f"in row {begin + at}. Correct the row, or take the column out of numbers="
                )
            if values is None:
                del parts[name]
            else:
                parts[name].append(_float32(values, table, name, begin))
        begin += len(chunk[0]) if chunk else 0
    found = {name: np.concatenate(values) for name, values in parts.items() if values}
    # A column of which nothing is known holds no number.
    return {
        name: values_N
        for name, values_N in found.items()
        if name in required or not np.isnan(values_N).all()
    }


def numbers_tensor(numbers: Sequence[NDArray[np.float32]], *, marked: bool) -> Tensor:
    """Columns of numbers side by side, N x D, with what was missing filled in.

    Args:
        numbers: D columns, not-a-number where it is missing.
        marked: whether each is followed by one that says where it was missing.
    """
    width = 2 if marked else 1
    values_ND = np.empty((len(numbers[0]), width * len(numbers)), np.float32)
    for place, values_N in enumerate(numbers):
        missing_N = np.isnan(values_N)
        known = values_N[~missing_N].astype(np.float64)
        filled_N = np.where(missing_N, known.mean() if len(known) else 0.0, values_N)
        values_ND[:, width * place] = filled_N
        if marked:
            values_ND[:, width * place + 1] = missing_N
    return torch.from_numpy(values_ND)


def categories_tensor(table: Table, columns: Sequence[str], buckets: int) -> Tensor:
    """Columns of categories side by side, N x C, int64 in 0..buckets-1."""
    parts: list[NDArray[np.int64]] = []
    known: list[dict[str, int]] = [{} for _ in columns]
    for chunk in table.chunks(columns):
        codes_NC = np.empty((len(chunk[0]), len(columns)), np.int64)
        for place, (name, cells) in enumerate(zip(columns, chunk, strict=True)):
            codes = known[place]
            for row, cell in enumerate(cells):
                text = "" if is_missing(cell) else str(cell).strip()
                code = codes.get(text)
                if code is None:
                    code = codes[text] = bucket_of(name, text, buckets)
                codes_NC[row, place] = code
        parts.append(codes_NC)
    return torch.from_numpy(np.concatenate(parts))


def bucket_of(salt: str, text: str, buckets: int) -> int:
    """The bucket of a text, the same in every process: its BLAKE2b digest modulo their number."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=_key(salt)).digest()
    return int.from_bytes(digest, "little") % buckets


def _key(salt: str) -> bytes:
    # A key has at most 64 bytes, and a column's name any number.
    return hashlib.blake2b(salt.encode(), digest_size=32).digest()


def _numbers(cells: Sequence[Cell]) -> list[float] | None:
    try:
        return [float(cell) for cell in cells]  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return [float("nan") if is_missing(cell) else float(cell) for cell in cells]  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return None


def _float32(values: list[float], table: Table, name: str, begin: int) -> NDArray[np.float32]:
    values_N = np.array(values, dtype=np.float64)
    bad = np.flatnonzero(np.abs(values_N) > _LARGEST)
    if len(bad):
        raise DataError(
            f"{table.name}: the column {name} has numbers that are not finite in float32, the "
            f"first {values_N[bad[0]]:g}, in the rows {named_rows((bad + begin).tolist())}. Give "
            f"finite numbers, or take the column as categories: categories={name}"
        )
    return values_N.astype(np.float32)


# Targets of a table that are no single class: columns of numbers to be told, or of 0 and 1.
#
#     target=COLUMN           a number of every row; several between commas
#     labels=COLUMN,COLUMN    1 in every column whose label a row has, 0 in the others
#
# Shapes: N rows, T columns.

# Options of which a source has one; without any, the column `label` is a class.
KINDS = ("label", "target", "labels")


def target_columns(query: Query) -> tuple[str, ...]:
    """The columns that are told of examples, and no part of what they are told by.

    Raises:
        ConfigError: targets of two kinds are named.
    """
    given = [name for name in KINDS if name in query]
    if len(given) > 1:
        raise ConfigError(
            f"{query.source}: {' and '.join(given)} were given together. Name a class (label=), "
            "numbers (target=), or labels of which a row may have several (labels=)."
        )
    if not given or given[0] == "label":
        return (query.text("label", "label"),)
    return query.names(given[0])


def read_table_targets(query: Query, table: Table) -> TargetValues | None:
    """The targets of all rows; None where they are classes.

    Raises:
        DataError: there is no such column, or a cell is no number, missing, or neither 0 nor 1.
    """
    for option, values_of in (("target", number_values), ("labels", label_values)):
        if option in query:
            columns = query.names(option)
            require_columns(table, columns, option)
            return values_of(_matrix(table, columns), columns, table.name)
    return None


def _matrix(table: Table, columns: Sequence[str]) -> torch.Tensor:
    numbers = read_numbers(table, columns, required=columns)
    return torch.from_numpy(np.stack([numbers[name] for name in columns], axis=1))
