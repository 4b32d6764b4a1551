"""Data of a mixture: several sources as one data set, and a target that is read as they are.

Tables and (X, y) are joined before they are read, so that classes, categories and missing numbers
are read alike, however few a source has. Other data is opened source by source, and matched by the
names of its classes.
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
from lipt.data.held_out import DataForm
from lipt.data.joining import joined, most_of
from lipt.data.loading import open_set
from lipt.data.registry import names_sources, table_address
from lipt.data.sources.address import quoted_names
from lipt.data.sources.cells import Decimals
from lipt.data.sources.frames import frame_table, is_frame, is_pair
from lipt.data.sources.rows import SourceLabels, require_labels, source_names
from lipt.data.sources.tables.csv_and_json import CSV_OPTIONS
from lipt.data.sources.tables.reading import open_table
from lipt.data.sources.tables.recognition import names_options
from lipt.data.sources.tables.table import coded, joined_chunks

_FOLDERS, _TARGET = "imagefolder:", "the target"


@dataclass(frozen=True)
class MixtureData:
    """The pool of all sources, and the target, at most as much of it as is used.

    num_target: the target's examples before that.
    fingerprint: of the data that row numbers are of, as a user opens it.
    data: the pool, where it was joined from parts; else None.
    """

    pool: Dataset
    target: Dataset
    num_target: int
    fingerprint: str
    data: Dataset | None


def open_mixture(
    sources: Any,
    target_data: Any,
    *,
    target: str | None = None,
    source: str | None = None,
    image_size: int | None = None,
    allow_modules: Sequence[str] = (),
) -> MixtureData:
    """Open sources and a target; arguments as in `lipt.mix`."""
    is_name = isinstance(sources, str | Path)
    fingerprint, data = "", None
    if isinstance(sources, Dataset) and sources.rows.sources is not None:
        pool = sources
    elif source is not None or (is_name and names_sources(str(sources))):
        pool, fingerprint = _pool_of_one(sources, target, source, image_size)
    else:
        pool = data = _pool_of_parts(sources, target, image_size)
    form = DataForm.of(pool)
    opened = form.open(_TARGET, target_data, target=target, allow_modules=allow_modules)
    pool_fingerprint = fingerprint or pool.fingerprint
    return MixtureData(pool, most_of(opened), len(opened), pool_fingerprint, data)


def _pool_of_one(
    sources: Any, target: str | None, source: str | None, image_size: int | None
) -> tuple[Dataset, str]:
    """Data that names each row's source, and its fingerprint as it is opened without sources."""
    name, options = "sources", dict[str, str]()
    if source is not None:
        folders = str(sources).startswith(_FOLDERS)
        options = {"source": "folder" if folders else quoted_names([source])}
    pool = open_set(name, sources, target, image_size, options=options)
    if pool.rows.sources is None:
        raise DataError(
            f"{pool.source} has no column {source!r} of sources. Give a table, or a mapping of "
            "sources."
        )
    if source is None or pool.rows.files is not None:
        return pool, ""
    return pool, open_set(name, sources, target, image_size).fingerprint


def _pool_of_parts(sources: Any, target: str | None, image_size: int | None) -> Dataset:
    if not isinstance(sources, Mapping) or not sources or is_frame(sources):
        given_as = "empty" if isinstance(sources, Mapping) else f"a {type(sources).__name__}"
        raise ConfigError(
            f"the sources are {given_as}. Give a mapping from each source's name to its data, or "
            'one table and the column of its sources: source="site".'
        )
    names, parts = source_names([*map(str, sources)], "the mapping"), list(sources.values())
    if len(set(names)) < len(names):
        raise ConfigError(f"two sources have one name ({listed(names, 20)}). Rename one of them.")
    tables = [table for table in (_table_of(part, target) for part in parts) if table is not None]
    if len(tables) == len(parts):
        columns = dict.fromkeys(chain.from_iterable(table.column_names for table, _ in tables))
        label = next((label for _, label in tables if label), None)
        for name, (table, _) in zip(names, tables, strict=True):
            _require_labels(name, table, label)
        together = pa.table(
            {
                column: joined_chunks([_column(table, column) for table, _ in tables])
                for column in columns
            }
        )
        opened = open_set("sources", together, label, image_size)
        return _with_sources(opened, names, [table.num_rows for table, _ in tables])
    if all(is_pair(part) for part in parts):
        examples, labels = (_chained([part[half] for part in parts], names) for half in (0, 1))
        opened = open_set("sources", (examples, labels), target, image_size)
        return _with_sources(opened, names, [len(part[1]) for part in parts])
    opened_parts = [
        (
            name,
            part
            if isinstance(part, Dataset)
            # A source may have one class alone.
            else open_set(name, part, target, image_size, min_classes=1),
        )
        for name, part in zip(names, parts, strict=True)
    ]
    pool = joined(opened_parts)
    require_labels(pool.labels_N, len(pool.class_names), "the sources")
    return pool


def _with_sources(pool: Dataset, names: tuple[str, ...], sizes: Sequence[int]) -> Dataset:
    for name, size in zip(names, sizes, strict=True):
        _require_some(name, size)
    places_N = torch.arange(len(names)).repeat_interleave(torch.tensor(sizes))
    rows = replace(pool.rows, sources=SourceLabels(names, places_N))
    return replace(pool, rows=rows, fingerprint=rows.fingerprint(), again=None)


def _require_some(name: str, size: int) -> None:
    if not size:
        raise DataError(f"{name} has no example. Give some, or leave it out.")


def _column(table: pa.Table, name: str) -> Any:
    return table[name] if name in table.column_names else pa.nulls(table.num_rows)


def _table_of(data: Any, target: str | None) -> tuple[pa.Table, str | None] | None:
    """The columns of a frame or a table's file, and its target; None for other data."""
    label = target
    if names_options(target):
        return None
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
