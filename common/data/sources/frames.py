"""Tables in memory: data frames, records, object arrays and texts, read as `csv:` reads a file.

    pandas                            by its columns
    polars, pyarrow                   by their columns
    datasets.Dataset                  of single values: no image, no list
    {"a": [1, 2], "b": ["x", "y"]}    columns of single values
    [{"a": 1, "b": "x"}, ...]         rows of single values
    (X, y)                            X one of these, an array of objects, or scipy's sparse matrix
    (texts, y), [(text, label), ...]  texts, as `csv:` reads them with text=COLUMN

Columns of texts are recognized: all columns besides the target, or one called text or the like, if
their cells have three words or more on average. A target with fractions, or with more different
numbers than `csv:` takes for classes, is a number to predict; another one is a class.
"""

from __future__ import annotations

import logging
import numbers
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.data.parallel import Progress
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.data.sources.storage import Query
from lipt.common.data.sources.table_files import Cell, Table, cell_of, require_columns
from lipt.common.data.sources.tables import are_too_many, read_numbers, rows_of_table
from lipt.common.data.sources.user_data import NUMBER, FactoryRows, labels_of_rows, rows_of_data
from lipt.common.errors import ConfigError, DataError
from lipt.common.images.formats import SUFFIXES
from lipt.common.text import did_you_mean

logger = logging.getLogger(__name__)

# Names of targets where none is given, the likeliest first.
TARGETS = ("label", "labels", "fine_label", "target", "class", "y")
_TEXTS = ("text", "sentence", "review", "content")
_SAMPLED_TEXTS = 100
_WORDS = 3
# Memory of a sparse matrix's numbers once they are dense.
_DENSE_BYTES = 2 * 2**30


class FrameTable(Table):
    """Columns in memory; `targets` are given apart from them, or `target` is one of them."""

    files = ()

    def __init__(
        self,
        columns: Sequence[tuple[str, Sequence[Any]]],
        class_names: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.name = "data"
        self._cells = dict(columns)
        self.columns = tuple(self._cells)
        self.class_names = class_names or {}
        names = [name for name, _ in columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(
                f"the table has the column {twice[0]!r} more than once. Give each its own name."
            )
        for name, cells in columns:
            if len(cells) != len(self):
                raise DataError(
                    f"the columns {names[0]} and {name} have {len(self)} and {len(cells)} cells. "
                    "Give columns of one length."
                )

    def __len__(self) -> int:
        return len(next(iter(self._cells.values()), ()))

    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Cell]]:
        columns = ([cell_of(one, self.name, name) for one in self._cells[name]] for name in names)
        yield from zip(*columns, strict=True)


def rows_in_memory(
    source: str, data: Any, progress: Progress | None = None, *, target: str | None = None
) -> FactoryRows | ColumnRows:
    """The rows of a user's data: a table's, or those of a map-style data set."""
    if is_table(data):
        return _table_rows(source, data, target)
    if target is not None:
        raise ConfigError(
            f"target={target!r} names a column, and a {type(data).__name__} has none. Give a "
            "table, or (X, y) without a target."
        )
    return rows_of_data(source, data, progress)


def is_table(data: Any) -> bool:
    """Whether data is read as a table or as texts, rather than row by row."""
    if is_frame(data):
        return True
    if is_pair(data):
        examples = data[0]
        return (
            is_frame(examples)
            or hasattr(examples, "tocsr")
            or _holds_cells(examples)
            or are_texts(examples)
        )
    row = _first(data)
    return isinstance(row, tuple | list) and len(row) == 2 and isinstance(row[0], str)


def are_texts(examples: Any) -> bool:
    """Whether the X of (X, y) is texts."""
    return isinstance(_first(examples), str)


def is_pair(data: Any) -> bool:
    """Whether data is (X, y); a tuple of two (example, label) pairs is a data set of two rows."""
    return (
        isinstance(data, tuple)
        and len(data) == 2
        and not any(isinstance(column, tuple | str) for column in data)
        and (hasattr(data[0], "tocsr") or _has_rows(data[0]))
        and _has_rows(data[1])
    )


def _has_rows(data: Any) -> bool:
    # Classes and arrays without dimensions have the method, too.
    try:
        return len(data) >= 0
    except TypeError:
        return False


def _first(data: Any) -> Any:
    """Row 0 of a sequence; None if there is none."""
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        return None
    try:
        return getattr(data, "iloc", data)[0] if len(data) else None
    except Exception:  # noqa: BLE001 - of a user's function, reported by its reader
        return None


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | numbers.Number | np.bool_ | date)


def _holds_cells(examples: Any) -> bool:
    """Whether rows are lists of single values that are not all numbers."""
    if isinstance(examples, np.ndarray):
        return examples.ndim == 2 and examples.dtype.kind in "OUSM"
    row: Any = _first(examples) if isinstance(examples, list) else None
    cells = isinstance(row, tuple | list) and len(row) > 0 and all(map(_is_cell, row))
    return cells and any(value is None or isinstance(value, str | date) for value in row)


def is_frame(data: Any) -> bool:
    """Whether data has named columns of single values, the target among them."""
    if hasattr(data, "iloc") or hasattr(data, "__arrow_c_stream__"):
        return hasattr(data, "columns")
    if hasattr(data, "features") and hasattr(data, "with_format") and hasattr(data, "__len__"):
        return all(_is_value(feature) for feature in (data.features or {}).values())
    if isinstance(data, np.ndarray):
        return data.dtype.names is not None
    if isinstance(data, Mapping):
        columns = [column for column in data.values() if isinstance(column, list | np.ndarray)]
        return len(data) == len(columns) > 0 and all(_is_cell(_first(one)) for one in columns)
    row: Any = _first(data) if isinstance(data, list) else None
    return isinstance(row, Mapping) and all(map(_is_cell, row.values()))


def _is_value(feature: Any) -> bool:
    binary = "binary" in getattr(feature, "dtype", "")
    return type(feature).__name__ in {"Value", "ClassLabel"} and not binary


def _columns(data: Any) -> list[tuple[str, Sequence[Any]]]:
    if hasattr(data, "iloc"):
        if not hasattr(data, "to_numpy"):
            raise ConfigError(
                f"a {type(data).__name__} is not in memory. Give what its compute() returns."
            )
        return [(str(name), column.tolist()) for name, column in data.items()]
    if isinstance(data, np.ndarray):
        return [(name, data[name].tolist()) for name in data.dtype.names or ()]
    if isinstance(data, Mapping):
        return [(str(name), list(column)) for name, column in data.items()]
    if isinstance(data, list):
        names = dict.fromkeys(name for row in data for name in row)
        return [(str(name), [row.get(name) for row in data]) for name in names]
    found = data.with_format("arrow")[:] if hasattr(data, "with_format") else data
    return [(name, _listed(found[name])) for name in getattr(found, "column_names", found.columns)]


def _table_rows(source: str, data: Any, target: str | None) -> ColumnRows:
    """The rows of a frame with its target, of (X, y), or of (text, label) pairs."""
    if is_frame(data):
        features = getattr(data, "features", {})
        named = {name: getattr(found, "names", None) for name, found in dict(features).items()}
        classes = {name: tuple(found) for name, found in named.items() if found}
        table = FrameTable(_columns(data), classes)
        return rows_of_table(Query(source, _options(table, target)), table)
    if is_pair(data):
        examples, given = data[0], _listed(data[1])
    else:
        rows = [data[row] for row in range(len(data))]
        examples, given = [row[0] for row in rows], [row[1] for row in rows]
    if target not in (None, NUMBER):
        raise ConfigError(
            f"target={target!r} was given together with the labels of (X, y). Leave one out."
        )
    if are_texts(examples) and str(_first(examples)).lower().endswith(SUFFIXES):
        raise DataError(
            f"{source}: row 0 is {_first(examples)!r:.60}, the name of a file. Give opened images, "
            "or the name of their folder: imagefolder:PATH."
        )
    columns = _examples(examples)
    column = next(name for name in (*TARGETS, "the target") if name not in dict(columns))
    table = FrameTable([*columns, (column, given)] if given else columns)
    if all(map(_is_cell, given)):
        options = _options_of(table, column, as_numbers=target == NUMBER)
        return rows_of_table(Query(source, options), table)
    options = {"label": _quoted([column]), **_text_options(table, column)}
    return rows_of_table(Query(source, options), table, labels_of_rows(given, None, source))


def _listed(values: Any) -> list[Any]:
    """The targets of (X, y): a column's cells, or a vector for each row."""
    if hasattr(values, "iloc") and hasattr(values, "columns") and len(values.columns) == 1:
        values = values.iloc[:, 0]
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim > 1 and values.shape[1] > 1:
        return list(values)
    values = values.reshape(-1) if isinstance(values, np.ndarray) else values
    for name in ("tolist", "to_pylist", "to_list"):
        if hasattr(values, name):
            return list(getattr(values, name)())
    return list(values.to_numpy() if hasattr(values, "to_numpy") else values)


def _examples(examples: Any) -> list[tuple[str, Sequence[Any]]]:
    if is_frame(examples):
        return _columns(examples)
    if hasattr(examples, "tocsr"):
        num_bytes = 8 * examples.shape[0] * examples.shape[1]
        if num_bytes > _DENSE_BYTES:
            raise DataError(
                f"a sparse matrix of {examples.shape[0]} x {examples.shape[1]} is too large to be "
                "dense. Reduce its columns, as sklearn's TruncatedSVD does."
            )
        examples = examples.toarray()
    if are_texts(examples):
        return [("text", list(examples))]
    rows = np.asarray(examples, dtype=object) if isinstance(examples, list) else examples
    if rows.ndim != 2:
        raise DataError("the rows of X differ in length. Give each row a cell for each column.")
    # Numbered with zeros in front, so that they keep their order.
    width = len(str(rows.shape[1]))
    return [(f"{place:0{width}}", rows[:, place].tolist()) for place in range(rows.shape[1])]


def _target_column(table: Table, target: str | None) -> str:
    if target is not None:
        if target not in table.columns:
            raise DataError(
                f"the table has no column {target!r}.{did_you_mean(target, table.columns)} Name "
                f"one of {', '.join(table.columns)}: target=COLUMN."
            )
        return target
    named = [name for name in TARGETS if name in table.columns]
    both = [name for name in named if name in table.class_names]
    if found := (*both, *table.class_names, *named):
        return found[0]
    last = table.columns[-1] if table.columns else "COLUMN"
    raise DataError(
        f"the table has the columns {', '.join(table.columns)}, and none of them is called label. "
        f"Name the one with the labels: target={last!r}."
    )


def query_of(table: Table, target: str) -> str:
    """The options that open a file as a frame of the same columns is understood."""
    return "&".join(f"{name}={value}" for name, value in _options(table, target).items())


def _options(table: Table, target: str | None) -> dict[str, str]:
    as_numbers = target == NUMBER and NUMBER not in table.columns
    column = _target_column(table, None if as_numbers else target)
    return _options_of(table, column, as_numbers=as_numbers)


def _options_of(table: Table, column: str, *, as_numbers: bool) -> dict[str, str]:
    require_columns(table, (column,), "target")
    named = column in table.class_names
    values_N = None if named else read_numbers(table, [column], required=()).get(column)
    numbers = values_N is not None and (as_numbers or _are_numbers(values_N))
    own = {"target" if numbers else "label": _quoted([column])}
    return {**own, **_text_options(table, column)}


def _text_options(table: Table, column: str) -> dict[str, str]:
    texts = _texts(table, [name for name in table.columns if name != column])
    return {"text": _quoted(texts)} if texts else {}


def _are_numbers(values_N: NDArray[np.float32]) -> bool:
    whole = bool((values_N == np.floor(values_N)).all())
    missing = bool(np.isnan(values_N).any())  # refused with the rows' numbers
    return not missing and (not whole or are_too_many(len(np.unique(values_N)), len(values_N)))


def _texts(table: Table, used: list[str]) -> list[str]:
    """The columns of texts; empty for a table of numbers and categories."""
    first = dict(zip(used, next(table.chunks(used), [[] for _ in used]), strict=True))
    wordy = [name for name in used if _is_wordy(first[name])]
    if wordy and len(wordy) == len(used):
        return wordy
    if used == ["text"] and are_texts(first["text"]):
        return used
    return [name for name in _TEXTS if name in wordy]


def _is_wordy(cells: Sequence[Cell]) -> bool:
    sample = [cell for cell in cells[:_SAMPLED_TEXTS] if cell is not None]
    texts = [cell for cell in sample if isinstance(cell, str)]
    if not sample or len(texts) < len(sample):
        return False
    return sum(len(text.split()) for text in texts) >= _WORDS * len(texts)


def _quoted(names: Sequence[str]) -> str:
    return ",".join(quote(name, safe="") for name in names)
