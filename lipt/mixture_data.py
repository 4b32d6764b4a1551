"""Data of a mixture: several sources, and a target after them, in one data set.

Tables and (X, y) are joined before they are read, so that classes, categories and missing numbers
are read alike, however few a part has. Other data is opened part by part, and matched by the names
of its classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from lipt.common.errors import ConfigError, DataError
from lipt.common.text import did_you_mean, listed
from lipt.data.dataset import Dataset
from lipt.data.loading import open_set
from lipt.data.registry import table_address
from lipt.data.sources.address import at_home
from lipt.data.sources.cells import Decimals
from lipt.data.sources.frames import frame_table, is_frame, is_pair
from lipt.data.sources.rows import ArrayRows, ColumnRows, EncodedRows, Rows
from lipt.data.sources.tables.csv_and_json import CSV_OPTIONS
from lipt.data.sources.tables.reading import open_table
from lipt.data.sources.tables.table import coded, joined_chunks

_FOLDERS, _TARGET = "imagefolder:", "the target"


@dataclass(frozen=True)
class Joined:
    """The data set of all parts, each source's ids there, and the target's.

    given: the table that was given with a column of sources; else the same data set.
    rows: each source's row numbers in it.
    """

    dataset: Dataset
    ids: Mapping[str, Tensor]
    target_ids: Tensor
    given: Dataset
    rows: Mapping[str, Tensor]


def join(
    sources: Any,
    target_data: Any,
    *,
    target: str | None = None,
    source: str | None = None,
    image_size: int | None = None,
) -> Joined:
    """Open sources and a target; arguments as in `lipt.mix`."""
    given, rows = None, None
    if source is not None and str(sources).startswith(_FOLDERS):
        root = Path(at_home(str(sources).removeprefix(_FOLDERS)))
        folders = sorted(at for at in root.iterdir() if at.is_dir())
        sources = {at.name: f"{_FOLDERS}{at}" for at in folders}
    elif source is not None:
        given = open_set("sources", sources, target)
        sources, rows, target = _by_column(sources, target, source)
        if (found := _table_of(target_data, target)) is not None:
            table, _ = found
            kept = [name for name in table.column_names if name != source]
            target_data = table.select(kept)
    if not isinstance(sources, Mapping) or not sources or is_frame(sources):
        given_as = "empty" if isinstance(sources, Mapping) else f"a {type(sources).__name__}"
        raise ConfigError(
            f"the sources are {given_as}. Give a mapping from each source's name to its data, or "
            'one table and the column of its sources: source="site".'
        )
    names, parts = tuple(map(str, sources)), [*sources.values(), target_data]
    if len(set(names)) < len(names):
        raise ConfigError(f"two sources have one name ({listed(names, 20)}). Rename one of them.")
    dataset, sizes = _joined(parts, (*names, _TARGET), target, image_size)
    for name, size in zip((*names, _TARGET), sizes, strict=True):
        if not size:
            raise DataError(f"{name} has no example. Give some, or leave it out.")
    *own, target_ids = torch.arange(sum(sizes)).split_with_sizes(sizes)
    ids = dict(zip(names, own, strict=True))
    return Joined(dataset, ids, target_ids, given or dataset, rows or ids)


def _joined(
    parts: Sequence[Any], names: Sequence[str], target: str | None, image_size: int | None
) -> tuple[Dataset, list[int]]:
    tables = [table for table in (_table_of(part, target) for part in parts) if table is not None]
    if len(tables) == len(parts):
        named = dict.fromkeys(chain.from_iterable(table.column_names for table, _ in tables))
        joined = {
            name: joined_chunks([_column(table, name) for table, _ in tables]) for name in named
        }
        label = next((label for _, label in tables if label), None)
        for name, (table, _) in zip(names, tables, strict=True):
            _require_labels(name, table, label)
        sizes = [table.num_rows for table, _ in tables]
        return open_set("sources", pa.table(joined), label, image_size), sizes
    if all(is_pair(part) for part in parts):
        examples, labels = (_chained([part[half] for part in parts], names) for half in (0, 1))
        opened = open_set("sources", (examples, labels), target, image_size)
        return opened, [len(part[1]) for part in parts]
    datasets = [
        open_set(name, part, None if isinstance(part, Dataset) else target, image_size)
        for name, part in zip(names, parts, strict=True)
    ]
    return _together(datasets), [len(part) for part in datasets]


def _column(table: pa.Table, name: str) -> Any:
    return table[name] if name in table.column_names else pa.nulls(table.num_rows)


def _table_of(data: Any, target: str | None) -> tuple[pa.Table, str | None] | None:
    """The columns of a frame or a table's file, and its target; None for other data."""
    label = target
    if isinstance(data, str | Path):
        address = table_address(str(data))
        if address is None or set(address.values) - {"label", "target", *CSV_OPTIONS}:
            return None
        table = open_table(address)
        label = address.text("label") or address.text("target") or target
    elif is_frame(data):
        table = frame_table("sources", data)
    else:
        return None
    # Its texts are no numbers without their decimal mark.
    return (pa.table(table.read(table.columns)), label) if table.decimals == Decimals() else None


def _by_column(
    data: Any, target: str | None, source: str
) -> tuple[dict[str, pa.Table], dict[str, Tensor], str | None]:
    """The parts of a table by the values of a column, each part's row numbers, and the target."""
    table, label = _table_of(data, target) or (pa.table({}), None)
    if source not in table.column_names:
        raise DataError(
            f"the sources have no column {source!r}.{did_you_mean(source, table.column_names)} "
            f"Name one of the columns of a table ({listed(table.column_names, 20)}), or give a "
            "mapping of sources."
        )
    codes_N, values = coded(table[source])
    names = ["missing", *map(str, values)]
    found = {name: np.flatnonzero(codes_N == place - 1) for place, name in enumerate(names)}
    rows = {name: torch.from_numpy(found[name]) for name in sorted(found) if len(found[name])}
    others = table.drop_columns([source])
    return {name: others.take(pa.array(found[name])) for name in rows}, rows, label


def _require_labels(name: str, table: pa.Table, label: str | None) -> None:
    """DataError for a part without the target's column, or with rows that lack its cell."""
    if label is None:
        return
    if label not in table.column_names:
        raise DataError(
            f"{name} has no column {label!r}.{did_you_mean(label, table.column_names)} All sources "
            f"and the target need it; this one has {listed(table.column_names, 20)}."
        )
    codes_N, _ = coded(table[label], missing=("",))
    if len(missing := np.flatnonzero(codes_N < 0)):
        raise DataError(
            f"{name}: {len(missing)} of {table.num_rows} rows have no label in the column {label}: "
            f"rows {listed(list(map(str, missing.tolist())), 20)}. Label or remove them."
        )


def _chained(parts: Sequence[Any], names: Sequence[str]) -> Any:
    """Arrays, tensors, lists or columns by name, one after another."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: _chained([part[name] for part in parts], names) for name in first}
    if all(isinstance(part, list) for part in parts):
        return list(chain.from_iterable(parts))
    shapes = [tuple(np.shape(part)) for part in parts]
    for name, shape in zip(names, shapes, strict=True):
        if shape[1:] != shapes[0][1:]:
            raise DataError(
                f"{name} has an array of shape {shape}, and {names[0]} {shapes[0]}. Give all "
                "sources and the target rows of one shape."
            )
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(list(parts))
    return np.concatenate([np.asarray(part) for part in parts])


def _together(parts: Sequence[Dataset]) -> Dataset:
    """Opened data sets of one kind of example as one, with the classes of all."""
    first = parts[0]
    for part in parts:
        if part.inputs != first.inputs or part.rows.targets is not None:
            raise DataError(
                f"{part.source} holds {part}, and {first.source} {first}. Give sources and a "
                "target with examples of one kind and size, and classes: image_size=64."
            )
    names = tuple(dict.fromkeys(chain.from_iterable(part.class_names for part in parts)))
    labels = [
        torch.tensor([names.index(name) for name in part.class_names])[part.labels_N]
        for part in parts
    ]
    rows = _stacked([part.rows for part in parts], names, torch.cat(labels))
    return replace(first, rows=rows, fingerprint=rows.fingerprint(), stamp=None, again=None)


def _stacked(parts: Sequence[Rows], names: tuple[str, ...], labels_N: Tensor) -> Rows:
    labelled = ("sources", names, labels_N)
    arrays = [part.images_NCHW for part in parts if isinstance(part, ArrayRows)]
    tables = [part for part in parts if isinstance(part, ColumnRows)]
    files = [
        (part, row) for part in parts if isinstance(part, EncodedRows) for row in range(len(part))
    ]
    if len(arrays) == len(parts):
        return ArrayRows(*labelled, np.concatenate(arrays))
    if len(tables) == len(parts):
        columns = tables[0].columns
        tensors = {
            one.name: torch.cat([part.tensors[one.name] for part in tables]) for one in columns
        }
        return ColumnRows(*labelled, columns, tensors)
    if len(files) == len(labels_N):
        return EncodedRows(
            *labelled,
            open=lambda row: files[row][0].open(files[row][1]),
            where=lambda row: files[row][0].where(files[row][1]),
        )
    kinds = listed(sorted({type(part).__name__ for part in parts}), 5)
    raise DataError(f"the sources are read in different ways: {kinds}. Give all in one form.")
