"""Data in memory: tables and texts, read as `csv:` reads a file, and rows of tensors or images.

Tables and texts:

    pandas                            by its columns
    polars, pyarrow                   by their columns
    datasets.Dataset                  of single values: no image, no list
    {"a": [1, 2], "b": ["x", "y"]}    columns of single values
    [{"a": 1, "b": "x"}, ...]         rows of single values
    (X, y)                            X one of these, an array of objects, or scipy's sparse matrix
    (texts, y), [(text, label), ...]  texts, as `csv:` reads them with text=COLUMN

Other data is read row by row, as `lipt.data.sources.user_data` does: (X, y) of arrays, tensors and
lists, also in dictionaries, by name; of a datasets.Dataset the file of its image, else all columns
but the label; and map-style data sets.

`lipt.data.sources.tables.recognition` finds the target and the columns of texts.
"""

from __future__ import annotations

import copy
import io
import logging
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from lipt.common.errors import ConfigError, DataError
from lipt.data.images.formats import SUFFIXES
from lipt.data.parallel import Progress
from lipt.data.sources.address import Address, quoted_names
from lipt.data.sources.map_style import Pairs, as_array, has_rows, is_same
from lipt.data.sources.rows import ColumnRows, EncodedRows, SourceLabels, sampled_rows
from lipt.data.sources.storage import open_regular
from lipt.data.sources.tables.reading import rows_of_table
from lipt.data.sources.tables.recognition import (
    NO_OPTIONS,
    TARGETS,
    names_options,
    options_of_column,
    table_options,
    target_column,
    text_options,
)
from lipt.data.sources.tables.table import (
    BATCH_ROWS,
    ColumnT,
    TableOfCells,
    read_sources,
    require_names,
)
from lipt.data.sources.user_data import (
    KINDS,
    NUMBER,
    FactoryRows,
    labels_of_rows,
    rows_of_data,
)

logger = logging.getLogger(__name__)
# Memory of a sparse matrix's numbers once they are dense.
_DENSE_BYTES = 2 * 2**30


class FrameTable(TableOfCells):
    """Columns in memory: Arrow's, pandas's, arrays or lists."""

    def __init__(
        self,
        source: str,
        columns: Sequence[tuple[str, Any]],
        class_names: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.name = source
        self._values = dict(columns)
        self.columns = tuple(self._values)
        self.class_names = class_names or {}
        names = [name for name, _ in columns]
        require_names(names, "the table")
        for name, values in columns:
            if len(values) != len(self):
                raise DataError(
                    f"the columns {names[0]} and {name} have {len(self)} and {len(values)} cells. "
                    "Give columns of one length."
                )

    def __len__(self) -> int:
        return len(next(iter(self._values.values()), ()))

    def _read(self, names: Sequence[str], read: Callable[..., ColumnT]) -> Iterator[list[ColumnT]]:
        rows = {name: getattr(values, "iloc", values) for name, values in self._values.items()}
        for start in range(0, len(self), BATCH_ROWS):
            some = slice(start, start + BATCH_ROWS)
            yield [read(rows[name][some], self.name, name) for name in names]

    def cells(self, name: str) -> Iterator[tuple[str, Any]]:
        column = self._values[name]
        # Arrow's cells are Python's values as a list, pandas's as they are.
        listed = getattr(column, "to_pylist", getattr(column, "tolist", lambda: list(column)))()
        for row, cell in enumerate(listed):
            yield f"{self.name}, row {row}", cell


def frame_table(source: str, data: Any) -> FrameTable:
    """The table of a frame: see `is_frame`."""
    return FrameTable(source, _columns(data), _class_names(data))


def rows_in_memory(
    source: str,
    data: Any,
    progress: Progress | None = None,
    *,
    target: str | None = None,
    options: Mapping[str, str] = NO_OPTIONS,
) -> EncodedRows | FactoryRows | ColumnRows:
    """The rows of a user's data: a table's, or those of a map-style data set."""
    _require_one_set(source, data)
    if is_frame(data) or names_options(target):
        table = _frame_with_target(source, data, target)
        return rows_of_table(Address(source, table_options(table, target, options)), table)
    if is_table(data):
        return _table_rows(source, data, target)
    rows = map_style(data, target)
    if is_hugging_face(data) and (image := _image_column(data)):
        sources = _sources(source, data, Address(source, options).text("source"))
        return _image_rows(source, data.select_columns([image]), rows, sources)
    return rows_of_data(source, rows, progress)


def _image_column(table: Any) -> str:
    """The first column of images, as `datasets.Image` stores them; "" without any."""
    for name, feature in table.features.items():
        if type(feature).__name__ == "Image" or (isinstance(feature, dict) and "bytes" in feature):
            return str(name)
    return ""


def _sources(source: str, data: Any, column: str) -> SourceLabels | None:
    """Each row's source of a Hugging Face table of images, by the column of that name."""
    cells = [name for name, feature in data.features.items() if _is_value(feature)]
    return read_sources(frame_table(source, data.select_columns(cells)), column)


def _image_rows(source: str, images: Any, rows: Pairs, sources: SourceLabels | None) -> EncodedRows:
    labels = labels_of_rows(list(rows.targets), rows, source)
    stored, (name,) = images.with_format("arrow"), images.features

    def open_row(row: int) -> BinaryIO:
        image = stored[row][name][0].as_py() or {}
        if image.get("bytes") is not None:
            return io.BytesIO(image["bytes"])
        if image.get("path") is None:
            raise DataError("the cell is empty")
        return open_regular(image["path"])

    return EncodedRows(
        *(source, labels.names, labels.labels_N),
        open=open_row,
        where=lambda row: f"row {row} of the column {name}",
        targets=labels.targets,
        sources=sources,
    )


def map_style(data: Any, target: str | None = None) -> Any:
    """Rows of (example, label) of data that is no table."""
    rows: Any = Pairs(*data) if is_pair(data) else data
    if is_hugging_face(data):
        label, labels, classes = _labels_of_table(data, target)
        rows = Pairs(_TableExamples(data, label), labels, classes.get(label))
    elif target not in (None, *KINDS):
        raise ConfigError(
            f"target={target!r} names a column, and a {type(data).__name__} has none. Give a "
            "table, or (X, y) without a target."
        )
    if target not in KINDS:
        return rows
    relabelled = copy.copy(rows)
    try:
        relabelled.target = target
    except AttributeError:
        raise ConfigError(
            f"target={target!r} cannot be set on a {type(data).__name__}. Give (X, y), or a data "
            f'set with the attribute target = "{target}".'
        ) from None
    return relabelled


def _labels_of_table(data: Any, target: str | None) -> tuple[str, Any, dict[str, tuple[str, ...]]]:
    """A Hugging Face table's label column, its values, and class names by column.

    Values are those that a transform of rows returns, where these differ; names are then dropped.
    """
    classes = _class_names(data)
    column = None if target in KINDS else target
    label = target_column(tuple(data.features), classes, column)
    labels = data.select_columns([label]).with_format("arrow")[:][label]
    if data.format["type"] == "custom":
        with suppress(Exception):  # of a user's function, which may return no label
            sample = sampled_rows(len(data))
            if not all(is_same(data[row][label], labels[row].as_py()) for row in sample):
                labels = [data[row][label] for row in range(len(data))]
                classes.pop(label, None)
                logger.warning("the labels that the transform of the rows returns are taken")
    return label, labels, classes


def _require_one_set(source: str, data: Any) -> None:
    """Refuse a training and a test set in one tuple, which could be read as (X, y) or as rows."""
    if not isinstance(data, tuple) or len(data) not in (2, 3):
        return
    frames = [part for part in data if is_frame(part) and hasattr(part, "columns")]
    columns = {tuple(map(str, getattr(part, "column_names", part.columns))) for part in frames}
    pairs = [part for part in data if is_pair(part)]
    tables = [part for part in pairs if np.ndim(part[0]) > 1 and len(part[0]) == len(part[1])]
    sets = [part for part in data if isinstance(part, TorchDataset) or is_hugging_face(part)]
    many_frames = len(frames) == len(data) and len(columns) == 1
    if many_frames or len(data) in (len(tables), len(sets)):
        raise ConfigError(
            f"{source} is a tuple of {len(data)} data sets. Give one alone, and a test set where "
            "a call takes one: test=."
        )


class _TableExamples:
    """The examples of a Hugging Face `datasets.Dataset`: its image, else all but the label."""

    def __init__(self, table: Any, label: str) -> None:
        image = _image_column(table)
        self._columns = [image] if image else [name for name in table.features if name != label]
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, row: int) -> Any:
        example = self._table[row]
        if len(self._columns) == 1:
            return example[self._columns[0]]
        return {name: example[name] for name in self._columns}


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
    return isinstance(_first(examples), str)


def is_pair(data: Any) -> bool:
    """Whether data is (X, y); a tuple of two (example, label) pairs is a data set of two rows."""
    return (
        isinstance(data, tuple)
        and len(data) == 2
        and not any(isinstance(column, tuple | str) for column in data)
        and (hasattr(data[0], "tocsr") or has_rows(data[0]))
        and has_rows(data[1])
    )


def is_hugging_face(data: Any) -> bool:
    """Whether data is a Hugging Face `datasets.Dataset`; its package need not be installed."""
    return hasattr(data, "features") and hasattr(data, "with_format") and hasattr(data, "__len__")


def _first(data: Any) -> Any:
    """Row 0 of a sequence; None if there is none."""
    try:
        return getattr(data, "iloc", data)[0] if len(data) else None
    except Exception:  # noqa: BLE001 - no sequence, or a user's function, reported by its reader
        return None


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | numbers.Number | np.bool_ | date)


def _holds_cells(examples: Any) -> bool:
    """Whether rows are lists of single values that are not all numbers."""
    if isinstance(examples, np.ndarray):
        return examples.ndim == 2 and examples.dtype.kind in "OUSM"
    row: Any = _first(examples) if isinstance(examples, list) else None
    cells = isinstance(row, tuple | list) and all(map(_is_cell, row))
    return cells and any(value is None or isinstance(value, str | date) for value in row)


def is_frame(data: Any) -> bool:
    """Whether data has named columns of single values, the target among them."""
    if hasattr(data, "iloc") or hasattr(data, "__arrow_c_stream__"):
        return hasattr(data, "columns")
    if is_hugging_face(data):
        return all(_is_value(feature) for feature in (data.features or {}).values())
    if isinstance(data, np.ndarray):
        return data.dtype.names is not None
    if isinstance(data, Mapping):
        columns = [column for column in data.values() if isinstance(column, list | np.ndarray)]
        return len(data) == len(columns) > 0 and all(_is_cell(_first(column)) for column in columns)
    row: Any = _first(data) if isinstance(data, list) else None
    return isinstance(row, Mapping) and all(map(_is_cell, row.values()))


def _is_value(feature: Any) -> bool:
    binary = "binary" in getattr(feature, "dtype", "")
    return type(feature).__name__ in {"Value", "ClassLabel"} and not binary


def _columns(data: Any) -> list[tuple[str, Any]]:
    if hasattr(data, "iloc") and not hasattr(data, "to_numpy"):
        raise ConfigError(
            f"a {type(data).__name__} is not in memory. Give what its compute() returns."
        )
    if hasattr(data, "iloc") or isinstance(data, Mapping):
        return [(str(name), column) for name, column in data.items()]
    if isinstance(data, np.ndarray):
        return [(name, data[name]) for name in data.dtype.names or ()]
    if isinstance(data, list) and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        return [(str(name), [row.get(name) for row in data]) for name in names]
    if not (is_hugging_face(data) or hasattr(data, "__arrow_c_stream__")):
        raise ConfigError(
            f"a {type(data).__name__} has no named columns in memory. Give a data frame, a list of "
            "dictionaries, a Hugging Face Dataset, or the name of a table's file."
        )
    table = data.with_format("arrow")[:] if is_hugging_face(data) else pa.table(data)
    return list(zip(table.column_names, table.columns, strict=True))


def _frame_with_target(source: str, data: Any, target: str | None) -> FrameTable:
    """A frame's table; of a Hugging Face one with the labels that its transform returns."""
    if not is_hugging_face(data) or names_options(target):
        return frame_table(source, data)
    label, labels, class_names = _labels_of_table(data, target)
    inputs = [(name, column) for name, column in _columns(data) if name != label]
    return FrameTable(source, [*inputs, (label, labels)], class_names)


def _table_rows(source: str, data: Any, target: str | None) -> ColumnRows:
    """The rows of (X, y), or of (text, label) pairs."""
    if is_pair(data):
        examples, given = data[0], _listed(data[1])
    else:
        rows = [data[row] for row in range(len(data))]
        examples, given = [row[0] for row in rows], [row[1] for row in rows]
    if target not in (None, *KINDS):
        raise ConfigError(
            f"target={target!r} was given together with the labels of (X, y). Leave one out, or "
            f"give one of {', '.join(KINDS)}."
        )
    if are_texts(examples) and str(_first(examples)).lower().endswith(SUFFIXES):
        raise DataError(
            f"{source}: row 0 is {_first(examples)!r:.60}, the name of a file. Give opened images, "
            "or the name of their folder: imagefolder:PATH."
        )
    columns = _examples(examples)
    column = next(name for name in (*TARGETS, "the target") if name not in dict(columns))
    table = FrameTable(source, [*columns, (column, given)] if given else columns)
    if all(map(_is_cell, given)):
        options = options_of_column(table, column, as_numbers=target == NUMBER)
        return rows_of_table(Address(source, options), table)
    options = {"label": quoted_names([column]), **text_options(table, column)}
    names = list(map(str, getattr(data[1], "columns", ()))) if is_pair(data) else []
    described = SimpleNamespace(classes=names or None, target=target)
    return rows_of_table(Address(source, options), table, labels_of_rows(given, described, source))


def _class_names(data: Any) -> dict[str, tuple[str, ...]]:
    features = dict(getattr(data, "features", {}))
    named = {name: getattr(feature, "names", None) for name, feature in features.items()}
    return {name: tuple(names) for name, names in named.items() if names}


def _listed(values: Any) -> list[Any]:
    """The targets of (X, y): a column's cells, or a vector for each row."""
    if hasattr(values, "iloc") and hasattr(values, "columns") and len(values.columns) == 1:
        values = values.iloc[:, 0]
    if isinstance(values, Tensor | np.ndarray):
        rows = as_array(values)
        return list(rows) if rows.ndim > 1 and rows.shape[1] > 1 else rows.reshape(-1).tolist()
    for name in ("tolist", "to_pylist", "to_list"):
        if hasattr(values, name):
            return list(getattr(values, name)())
    return list(values.to_numpy() if hasattr(values, "to_numpy") else values)


def _examples(examples: Any) -> list[tuple[str, Any]]:
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
    return [(f"{place:0{width}}", rows[:, place]) for place in range(rows.shape[1])]
