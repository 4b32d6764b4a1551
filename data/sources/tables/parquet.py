"""Parquet files: tables, and images in Hugging Face's convention.

Images are a column `struct<bytes: binary, path: string>` named img or image, or the only one of
that type, and integers named label, labels, fine_label or fine_labels. The schema's "huggingface"
metadata has the class names.
"""

from __future__ import annotations

import io
import json
import re
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from pyarrow import parquet

from lipt.common.errors import DataError
from lipt.data.sources.address import Address, is_url
from lipt.data.sources.rows import EncodedRows, is_texts
from lipt.data.sources.storage import Stamp, storage_of
from lipt.data.sources.tables.table import (
    BATCH_ROWS,
    Table,
    arrow_column,
    read_sources,
    require_names,
)

_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("label", "labels", "fine_label", "fine_labels")
_CACHE_BYTES = 2**30
_LARGEST = np.iinfo(np.int64).max


class RowGroups:
    """The `bytes` field of a struct column, by row number, with a cache of whole row groups."""

    def __init__(
        self, readers: Mapping[str, Any], column: str, *, max_bytes: int = _CACHE_BYTES
    ) -> None:
        self._readers, self._column = readers, column
        self._groups = [
            (name, group, reader.metadata.row_group(group))
            for name, reader in readers.items()
            for group in range(reader.metadata.num_row_groups)
        ]
        largest = max((row_group.total_byte_size for *_, row_group in self._groups), default=1)
        self._values = lru_cache(max(1, max_bytes // max(1, largest)))(self._load)
        # Row r is in the group k with starts[k] <= r < starts[k + 1].
        sizes = (row_group.num_rows for *_, row_group in self._groups)
        self._starts: list[int] = list(accumulate(sizes, initial=0))
        self._lock = threading.Lock()

    def read(self, row: int) -> bytes:
        group = bisect_right(self._starts, row) - 1
        with self._lock:
            value = self._values(group)[row - self._starts[group]]
        if value is None:
            raise DataError(
                f"its {self._column}.bytes is null; images have to be inside the Parquet file"
            )
        return value

    def where(self, row: int) -> str:
        group = bisect_right(self._starts, row) - 1
        name, number, _ = self._groups[group]
        return f"{name}, row {row - self._starts[group - number]}"

    def _load(self, index: int) -> list[bytes | None]:
        name, group, _ = self._groups[index]
        try:
            table = self._readers[name].read_row_group(group, columns=[f"{self._column}.bytes"])
        except (OSError, ValueError) as error:
            raise DataError(f"row group {group} of {name} is broken: {error}") from error
        values: list[bytes | None] = table.flatten().column(0).to_pylist()
        return values


class ParquetTable(Table):
    """A file, or those of a directory's training split, concatenated."""

    def __init__(self, source: str, path: str) -> None:
        files = _find_files(source, path)
        self.name, self.stamp = path, Stamp.of(files)
        self.readers: dict[str, parquet.ParquetFile] = {}
        for file in files:
            try:
                opened = storage_of(source, file).open(file) if is_url(file) else file
                self.readers[file] = parquet.ParquetFile(opened)
            except (OSError, ValueError) as error:
                raise DataError(
                    f"{file} cannot be read as a Parquet file: {error}. Fetch it again, or name "
                    "another."
                ) from error
            columns = tuple(self.readers[file].schema_arrow.names)
            if file == files[0]:
                self.columns = columns
                require_names(columns, file)
            elif columns != self.columns:
                raise DataError(
                    f"{file} has the columns {', '.join(columns)}, not those of the first file: "
                    f"{', '.join(self.columns)}. Name files of one data set."
                )
        self.schema = self.readers[files[0]].schema_arrow
        self.class_names = {name: _class_names(self.schema, name) for name in self.columns}

    def batches(self, names: Sequence[str]) -> Iterator[list[Any]]:
        for file, batch in self._stored(names):
            yield [arrow_column(batch.column(name), file, name) for name in names]

    def objects(self) -> Iterator[dict[str, Any]]:
        for _, batch in self._stored(self.columns):
            yield from batch.to_pylist()

    def cells(self, name: str) -> Iterator[tuple[str, Any]]:
        row = 0
        for _, batch in self._stored([name]):
            for cell in batch.column(name).to_pylist():
                yield f"{self.name}, row {row}", cell
                row += 1

    def _stored(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        for file, reader in self.readers.items():
            try:
                for batch in reader.iter_batches(batch_size=BATCH_ROWS, columns=list(names)):
                    yield file, batch
            except (OSError, ValueError, ArithmeticError) as error:
                raise DataError(
                    f"the columns {', '.join(names)} of {file} cannot be read: {error}. Fetch the "
                    "file again."
                ) from error


def parquet_rows(address: Address) -> EncodedRows:
    """The images of a Parquet file, or of a directory's training split, files in sorted order."""
    table = ParquetTable(address.source, address.path)
    image_column, label_column = _image_and_label(table)
    labels = table.read([label_column])[label_column].to_pylist()
    if not labels:
        raise DataError(
            f"{address.source} has no rows. Name the file that holds the training images."
        )
    for row, label in enumerate(labels):
        if not isinstance(label, int) or label > _LARGEST:  # uint64 only; tensors have signed types
            raise DataError(
                f"{table.name}, row {row}: the {label_column} is {label}. Give it a class number, "
                "counted from 0, or remove the row."
            )
    groups = RowGroups(table.readers, image_column)
    return EncodedRows(
        *(address.source, table.class_names[label_column] or None),
        torch.tensor(labels, dtype=torch.int64),
        open=lambda row: io.BytesIO(groups.read(row)),
        where=groups.where,
        stamp=table.stamp,
        sources=read_sources(table, address.text("source")),
    )


def _find_files(source: str, path: str) -> list[str]:
    """A Parquet file, or a directory's: train*.parquet, those in a folder train, else all."""
    storage = storage_of(source, path)
    if storage.is_file(path):
        return [path]
    files = storage.listed(path, ".parquet", below=True)
    if not files:
        raise DataError(
            f"{source}: {path} is no file, and there is no *.parquet below it. Name a Parquet "
            "file, or a directory that holds some."
        )
    train = [name for name in files if re.search(r"/train([^/]*|/[^/]*)$", name)]
    directories = sorted({name.rpartition("/")[0] for name in train})
    if len(directories) > 1:
        raise DataError(
            f"{source}: {path} holds training files in {len(directories)} directories: "
            f"{', '.join(directories)}. Name the one to use."
        )
    return train or files


def _image_and_label(table: ParquetTable) -> tuple[str, str]:
    name, schema = table.name, table.schema
    listed = ", ".join(f"{field.name} ({field.type})" for field in schema)
    struct = re.compile(r"struct<(.*, )?bytes: (large_)?binary\b")
    images = [str(field.name) for field in schema if struct.match(str(field.type))]
    image = next((candidate for candidate in _IMAGE_COLUMNS if candidate in images), None)
    if image is None and len(images) == 1:
        image = images[0]
    if image is None:
        raise DataError(
            f"{name} has {len(images)} columns of the type struct<bytes: binary, path: string> "
            f"among {listed}. Call the images' column image."
        )
    integers = {field.name for field in schema if re.fullmatch(r"u?int\d+", str(field.type))}
    label = next((candidate for candidate in _LABEL_COLUMNS if candidate in integers), None)
    if label is None:
        raise DataError(
            f"{name} has no integer column called {', '.join(_LABEL_COLUMNS)} among {listed}. "
            "Call the class numbers' column label."
        )
    return image, label


def _class_names(schema: Any, label_column: str) -> tuple[str, ...]:
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])
        names = described["info"]["features"][label_column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
    return tuple(names) if is_texts(names) else ()
