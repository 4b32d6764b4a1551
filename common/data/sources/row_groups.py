"""Row groups: random access to a binary column of Parquet files.

A row group is the least that Parquet can read. The last ones used stay in
memory, up to a budget that holds all of a small set, so that a pass in order
reads every group once whatever the set's size.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lipt.common.errors import DataError

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
