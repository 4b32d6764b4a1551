"""Parquet: files of encoded images, read by row groups."""

from __future__ import annotations

import io
import itertools
import json
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.data.sources.index import Stamp
from lipt.common.data.sources.rows import numbered_classes
from lipt.common.data.sources.storage import is_url, open_remote, storage_of
from lipt.common.errors import DataError
from lipt.common.imports import import_extra

# Row groups: random access to a binary column of Parquet files.
#
# A row group is the least that Parquet can read. The last ones used stay in
# memory, up to a budget that holds all of a small set, so that a pass in order
# reads every group once whatever the set's size.

_CACHE_BYTES = 2**30


@dataclass(frozen=True)
class ParquetFile:
    """An open file, and the name by which errors call it."""

    name: str
    reader: Any


class RowGroups:
    """The `bytes` field of a struct column, by row number over several files."""

    def __init__(
        self, files: Sequence[ParquetFile], column: str, *, max_bytes: int = _CACHE_BYTES
    ) -> None:
        self._files = files
        self._column = column
        self._max_bytes = max_bytes
        self._groups = [
            (file, group)
            for file, opened in enumerate(files)
            for group in range(opened.reader.metadata.num_row_groups)
        ]
        # Row r is in the group k with starts[k] <= r < starts[k + 1]; so for files.
        self._starts = _starts(
            files[file].reader.metadata.row_group(group).num_rows for file, group in self._groups
        )
        self._file_starts = _starts(file.reader.metadata.num_rows for file in files)
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, list[bytes | None]] = OrderedDict()
        self._cached_bytes = 0

    def read(self, row: int) -> bytes:
        """The bytes of a row, from any thread.

        Raises:
            DataError: the row holds none, or its row group cannot be read.
        """
        group = bisect_right(self._starts, row) - 1
        with self._lock:
            values = self._cache.get(group)
            if values is None:
                values = self._load(group)
            else:
                self._cache.move_to_end(group)
        value = values[row - self._starts[group]]
        if value is None:
            raise DataError(
                f"its {self._column}.bytes is null; images have to be inside the Parquet file"
            )
        return value

    def where(self, row: int) -> str:
        """The file, and the row's number in it."""
        file = bisect_right(self._file_starts, row) - 1
        return f"{self._files[file].name}, row {row - self._file_starts[file]}"

    def _load(self, index: int) -> list[bytes | None]:
        file, group = self._groups[index]
        opened = self._files[file]
        try:
            table = opened.reader.read_row_group(group, columns=[f"{self._column}.bytes"])
        except (OSError, ValueError) as error:
            raise DataError(f"row group {group} of {opened.name} is broken: {error}") from error
        values: list[bytes | None] = table.flatten().column(0).to_pylist()
        self._cache[index] = values
        self._cached_bytes += _size(values)
        while self._cached_bytes > self._max_bytes and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= _size(dropped)
        return values


def _starts(lengths: Iterable[int]) -> list[int]:
    return list(itertools.accumulate(lengths, initial=0))


def _size(values: list[bytes | None]) -> int:
    return sum(len(value) for value in values if value is not None)


# Parquet files in Hugging Face's convention: a column of image files, and one of labels.
#
# The image column is a `struct<bytes: binary, path: string>` called img or image,
# or the only one of that type. The labels are integers in a column called label,
# labels, fine_label or fine_labels. Class names come from the "huggingface" entry
# of the schema's metadata, where there is one.

IMAGE_COLUMNS = ("img", "image")
_LARGEST = np.iinfo(np.int64).max

LABEL_COLUMNS = ("label", "labels", "fine_label", "fine_labels")


def parquet_rows(source: str, path: str) -> EncodedRows:
    """The rows of one Parquet file, or of a directory's training split, files in sorted order.

    Args:
        source: the name under which the user opens them.
        path: a file, or a directory: its files called train*.parquet or in a directory
            called train, or all its Parquet files where there are none such. A path or a URL,
            of which no more is fetched than the row groups that are read.

    Raises:
        ConfigError: the URL is of no kind that can be read.
        DataError: there is no such file, it is broken, or has no columns of images and labels.
        MissingExtraError: pyarrow is not installed, or for a URL fsspec.
    """
    paths = find_files(source, path)
    stamp = Stamp.of(paths)
    parquet = import_extra(
        "pyarrow.parquet", package="pyarrow", extra="parquet", needed_for=f"the data set {source}"
    )
    files = [ParquetFile(file, open_file(parquet, source, file)) for file in paths]
    schema = files[0].reader.schema_arrow
    image_column = _image_column(schema, files[0].name)
    label_column = _label_column(schema, files[0].name)
    labels_N = torch.cat([_read_labels(file, image_column, label_column) for file in files])
    if len(labels_N) == 0:
        raise DataError(f"{source} has no rows. Name the file that holds the training images.")
    names = class_names(schema, label_column)
    groups = RowGroups(files, image_column)
    return EncodedRows(
        source=source,
        names=names or numbered_classes(labels_N, source),
        labels_N=labels_N,
        open=lambda row: io.BytesIO(groups.read(row)),
        where=groups.where,
        stamp=stamp,
    )


def find_files(source: str, path: str) -> list[str]:
    """One Parquet file, or those of a directory's training split; see `parquet_rows`.

    Raises:
        ConfigError: the URL is of no kind that can be read.
        DataError: there are none, or training files in several directories.
        MissingExtraError: for a URL, fsspec is not installed.
    """
    storage = storage_of(source, path)
    if storage.is_file(path):
        return [path]
    found = storage.listed(path, ".parquet", below=True)
    if found is None:
        raise DataError(
            f"{source}: there is no file or directory {path}. Name a Parquet file, or a directory "
            "that holds some."
        )
    if not found:
        raise DataError(f"{source}: there is no *.parquet below {path}. Name where they are.")
    folders = {name: name.rpartition("/")[0] for name in found}
    train = [
        name
        for name, folder in folders.items()
        if name.rpartition("/")[2].startswith("train") or folder.rpartition("/")[2] == "train"
    ]
    directories = sorted({folders[name] for name in train})
    if len(directories) > 1:
        raise DataError(
            f"{source}: {path} holds training files in {len(directories)} directories: "
            f"{', '.join(directories)}. Name the one to use."
        )
    return train or found


def open_file(parquet: Any, source: str, path: str) -> Any:
    """A reader of a file, by the module `pyarrow.parquet`.

    Raises:
        DataError: it is no Parquet file.
    """
    try:
        return parquet.ParquetFile(open_remote(source, path).open(path) if is_url(path) else path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as a Parquet file: {error}. Fetch it again, or name another."
        ) from error


def _image_column(schema: Any, name: str) -> str:
    images = [field.name for field in schema if _holds_images(str(field.type))]
    for candidate in IMAGE_COLUMNS:
        if candidate in images:
            return candidate
    if len(images) == 1:
        return str(images[0])
    raise DataError(
        f"{name} has {len(images)} columns of the type struct<bytes: binary, path: string> and "
        f"none is called img or image; its columns are {_columns(schema)}. Call the images' "
        "column image."
    )


def _holds_images(type_name: str) -> bool:
    return re.match(r"struct<(.*, )?bytes: (large_)?binary\b", type_name) is not None


def _label_column(schema: Any, name: str) -> str:
    integers = {field.name for field in schema if re.fullmatch(r"u?int\d+", str(field.type))}
    for candidate in LABEL_COLUMNS:
        if candidate in integers:
            return candidate
    raise DataError(
        f"{name} has no integer column called {', '.join(LABEL_COLUMNS)}; its columns are "
        f"{_columns(schema)}. Call the class numbers' column label."
    )


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _read_labels(file: ParquetFile, image_column: str, label_column: str) -> Tensor:
    schema = file.reader.schema_arrow
    if _image_column(schema, file.name) != image_column or (
        _label_column(schema, file.name) != label_column
    ):
        raise DataError(
            f"{file.name} has the columns {_columns(schema)}, not those of the first file: "
            f"{image_column} and {label_column}. Name files of one data set."
        )
    try:
        column = file.reader.read(columns=[label_column]).column(0)
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise DataError(
                f"{file.name}, row {row}: the {label_column} is null. Label or remove the row."
            )
        labels = column.to_pylist()
    except (OSError, ValueError) as error:
        raise DataError(
            f"the column {label_column} of {file.name} cannot be read: {error}. "
            "Fetch the file again."
        ) from error
    for row, label in enumerate(labels):
        if label > _LARGEST:  # of uint64; a tensor's are signed
            raise DataError(
                f"{file.name}, row {row}: the {label_column} is {label}, which is no class's. "
                "Labels must be class numbers counted from 0."
            )
    return torch.from_numpy(np.array(labels, dtype=np.int64))


def class_names(schema: Any, label_column: str) -> tuple[str, ...]:
    """The names of a column's numbers in Hugging Face's metadata, or none."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])
        names = described["info"]["features"][label_column]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)
