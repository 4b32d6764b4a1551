"""Recognition of a table's columns: its target, whether that is a class, and its texts.

Columns of texts are all columns besides the target, or one called text or the like, if their cells
have three words or more on average. A target with fractions, or with more different numbers than
`csv:` takes for classes, is a number to predict; another one is a class.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from lipt.common.errors import DataError
from lipt.common.text import did_you_mean
from lipt.data.sources.address import Address, quoted_names
from lipt.data.sources.tables.reading import TABLE_OPTIONS, read_numbers
from lipt.data.sources.tables.table import Cell, Table, require_columns
from lipt.data.sources.user_data import KINDS, NUMBER
from lipt.data.targets.kinds import are_too_many

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})

# Names of targets where none is given, the likeliest first.
TARGETS = ("label", "labels", "fine_label", "target", "class", "y")
_TEXTS = ("text", "sentence", "review", "content")
_SAMPLED_TEXTS = 100
_WORDS = 3


def target_column(
    columns: Sequence[str], class_names: Mapping[str, object], target: str | None
) -> str:
    if target is not None:
        if target not in columns:
            raise DataError(
                f"the table has no column {target!r}.{did_you_mean(target, columns)} Name "
                f"one of {', '.join(columns)}: target=COLUMN."
            )
        return target
    named = [name for name in TARGETS if name in columns]
    both = [name for name in named if name in class_names]
    if candidates := (*both, *class_names, *named):
        return candidates[0]
    last = columns[-1] if columns else "COLUMN"
    raise DataError(
        f"the table has the columns {', '.join(columns)}, and none of them is called label. "
        f"Name the one with the labels: target={last!r}."
    )


def names_options(target: str | None) -> TypeGuard[str]:
    """Whether a target is options of a table rather than a column."""
    return target is not None and "=" in target and target.partition("=")[0] in TABLE_OPTIONS


def table_options(
    table: Table, target: str | None, more: Mapping[str, str] = NO_OPTIONS
) -> dict[str, str]:
    """The options that open a file as a frame of the same columns is understood, and `more`.

    A target may be the options themselves, as an address has them after its question mark.
    """
    if names_options(target) and target not in table.columns:
        return {**Address.parse(f"target:?{target}", TABLE_OPTIONS).values, **more}
    kind = target if target in KINDS and target not in table.columns else None
    column = target_column(table.columns, table.class_names, None if kind else target)
    return {**options_of_column(table, column, more, as_numbers=kind == NUMBER), **more}


def options_of_column(
    table: Table, column: str, more: Mapping[str, str] = NO_OPTIONS, *, as_numbers: bool
) -> dict[str, str]:
    require_columns(table, (column,), "target")
    named = column in table.class_names
    read = None if named else read_numbers(table, column, table.read([column])[column])
    numbers = read is not None and (as_numbers or _are_numbers(read.values_N))
    own = {"target" if numbers else "label": quoted_names([column])}
    return {**own, **text_options(table, column, more)}


def text_options(table: Table, column: str, more: Mapping[str, str] = NO_OPTIONS) -> dict[str, str]:
    if {"numbers", "categories"} & more.keys():
        return {}
    beside = {column, Address("", more).text("source")}
    texts = _texts(table, [name for name in table.columns if name not in beside])
    return {"text": quoted_names(texts)} if texts else {}


def _are_numbers(values_N: NDArray[np.float64]) -> bool:
    whole = bool((values_N == np.floor(values_N)).all())
    missing = bool(np.isnan(values_N).any())  # refused with the rows' numbers
    return not missing and (not whole or are_too_many(len(np.unique(values_N)), len(values_N)))


def _texts(table: Table, used: list[str]) -> list[str]:
    """The columns of texts; empty for a table of numbers and categories."""
    batch = next(table.batches(used), [])
    first = {n: c.slice(0, _SAMPLED_TEXTS).to_pylist() for n, c in zip(used, batch, strict=False)}
    wordy = [name for name, cells in first.items() if _is_wordy(cells)]
    if wordy == used or (used == ["text"] and isinstance(next(iter(first["text"]), None), str)):
        return used
    return [name for name in _TEXTS if name in wordy]


def _is_wordy(cells: Sequence[Cell]) -> bool:
    known = [cell for cell in cells if cell is not None]
    words = [len(cell.split()) for cell in known if isinstance(cell, str)]
    return len(words) == len(known) > 0 and sum(words) >= _WORDS * len(words)
