"""Parquet as a table: columns of numbers and texts, in one file or in several of one data set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lipt.common.data.sources.parquet import class_names, find_files, open_file
from lipt.common.data.sources.tables.cells import CHUNK_ROWS, Cell
from lipt.common.errors import DataError
from lipt.common.imports.extras import import_extra


class ParquetTable:
    """A file, or those of a directory's training split, one below the other."""

    def __init__(self, source: str, path: str) -> None:
        """Read the columns' names.

        Raises:
            DataError: there is no such file, it is broken, or files have other columns.
            MissingExtraError: pyarrow is not installed.
        """
        parquet = import_extra(
            "pyarrow.parquet",
            package="pyarrow",
            extra="parquet",
            needed_for=f"the data set {source}",
        )
        self.name = path
        files = find_files(source, path)
        self.files: Sequence[Path | str] = files
        self._readers = [open_file(parquet, source, file) for file in files]
        schema = self._readers[0].schema_arrow
        self.columns = tuple(schema.names)
        self.class_names: Mapping[str, tuple[str, ...]] = {
            name: class_names(schema, name) for name in self.columns
        }
        for file, reader in zip(self.files, self._readers, strict=True):
            if tuple(reader.schema_arrow.names) != self.columns:
                raise DataError(
                    f"{file} has the columns {', '.join(reader.schema_arrow.names)}, not those of "
                    f"the first file: {', '.join(self.columns)}. Name files of one data set."
                )

    def chunks(self, names: Sequence[str]) -> Iterator[list[list[Cell]]]:
        """The cells of some columns."""
        for file, reader in zip(self.files, self._readers, strict=True):
            try:
                for batch in reader.iter_batches(batch_size=CHUNK_ROWS, columns=list(names)):
                    yield [
                        [self._cell(value, name) for value in batch.column(name).to_pylist()]
                        for name in names
                    ]
            except (OSError, ValueError) as error:
                raise DataError(
                    f"the columns {', '.join(names)} of {file} cannot be read: {error}. Fetch the "
                    "file again."
                ) from error

    def _cell(self, value: object, name: str) -> Cell:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float) and math.isnan(value):
            return None
        if value is None or isinstance(value, str | int | float):
            return value
        raise DataError(
            f"{self.name}: the column {name} holds {type(value).__name__}, which is neither text "
            f"nor a number. Convert it, or leave it out: drop={name}"
        )
