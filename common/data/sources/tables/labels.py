"""Labels: a table's column of classes as numbers, which are the classes' places in their order.

Classes are in the order of their names, those that look like numbers by value, so that a training
and a test file agree where both have all of them; `classes=a,b,c` says them for files that do not.

Shapes: N rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lipt.common.data.sources.tables.cells import Cell, Table, named_rows
from lipt.common.errors import DataError

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
