"""Table files: CSV, JSON lines and Parquet, read by columns in chunks of rows; Parquet's images.

Images are in Hugging Face's convention: a column `struct<bytes: binary, path: string>` named img or
image, or the only one of that type, and integers named label, labels, fine_label or fine_labels.
The schema's "huggingface" metadata has the class names.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, TextIO
from urllib.parse import quote

import numpy as np
import torch

from lipt.common.errors import ConfigError, DataError
from lipt.common.imports import import_extra
from lipt.common.text import did_you_mean, listed
from lipt.data.sources.cells import Cell, Decimals, cell_of, number_in, require_text
from lipt.data.sources.rows import EncodedRows, is_texts
from lipt.data.sources.storage import Query, Stamp, is_url, open_regular, storage_of

CHUNK_ROWS = 8192
# A spreadsheet's.
MOST_COLUMNS = 16_384
_LONGEST_NAME = 1000
# In characters. A quote that is never closed would take the rest of the file.
_LONGEST_CELL = 2**24

_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("label", "labels", "fine_label", "fine_labels")
_CACHE_BYTES = 2**30
_LARGEST = np.iinfo(np.int64).max

# Between a CSV file's cells, the likeliest first.
_DELIMITERS = (",", ";", "\t", "|")
_SNIFFED_LINES = 100
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Table(ABC):
    """A data set's file or files, by columns."""

    name: str
    files: Sequence[Path | str]
    columns: tuple[str, ...]
    class_names: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    # Columns that the file itself declares as dates; they are seconds.
    dates: Collection[str] = ()
    decimals = Decimals()
    # What was recognized in the file, a clause.
    note = ""

    def chunks(self, names: Sequence[str]) -> Iterator[list[list[Cell]]]:
        """Chunks of rows, with a list of cells for each of `names`."""
        rows = self._rows(names)
        while chunk := list(islice(rows, CHUNK_ROWS)):
            yield [list(column) for column in zip(*chunk, strict=True)]

    @abstractmethod
    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Cell]]: ...


def require_columns(table: Table, names: Sequence[str], option: str) -> None:
    for name in names:
        if name not in table.columns:
            raise DataError(
                f"{table.name} has no column {name!r}.{did_you_mean(name, table.columns)} Write "
                f"{option}=COLUMN with one of {', '.join(table.columns)}."
            )


@dataclass(frozen=True)
class CsvOptions:
    """How a CSV file is written; an empty delimiter is recognized, as are decimal commas."""

    delimiter: str = ""
    encoding: str = ""
    decimal: str = ""

    NAMES: ClassVar = ("delimiter", "encoding", "decimal")

    @classmethod
    def of(cls, query: Query) -> Self:
        found = cls(*(query.text(name) for name in cls.NAMES))
        if found.delimiter and (len(found.delimiter) != 1 or found.delimiter in '"\r\n'):
            raise ConfigError(
                f"{query.source}: the delimiter {found.delimiter!r} is not one character. Write "
                "delimiter=; or delimiter=%09 for a tab."
            )
        if found.decimal not in ("", ".", ","):
            raise ConfigError(
                f"{query.source}: decimal={found.decimal} is neither a point nor a comma. Write "
                "decimal=. or decimal=%2C."
            )
        with suppress(LookupError, ValueError):
            "".encode(found.encoding or "utf-8")
            named = codecs.lookup(found.encoding).name if found.encoding else ""
            # A byte order mark is no part of the first name.
            return replace(found, encoding="" if named == "utf-8" else named)
        raise ConfigError(
            f"{query.source}: there is no encoding {found.encoding!r}. Write encoding=latin-1, "
            "encoding=cp1252 or encoding=utf-16."
        )


def with_csv_options(source: str, options: CsvOptions) -> str:
    """The name of a CSV file, `train.csv` or `csv:train.csv?label=COLUMN`, with options added."""
    given = [(name, value) for name, value in vars(options).items() if value]
    if not given:
        return source
    path, _, query = source.removeprefix("csv:").partition("?")
    if path == source and not path.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt")):
        raise ConfigError(
            f"{given[0][0]}={given[0][1]} is an option of CSV files, and {source!r:.80} names "
            "other data. Leave it out, or write csv:PATH."
        )
    written = (f"{name}={quote(value, safe='')}" for name, value in given)
    return f"csv:{path}?{'&'.join([*filter(None, [query]), *written])}"


class CsvTable(Table):
    """CSV with a header line, also gzipped; ignores nameless columns, such as pandas's."""

    def __init__(self, path: Path, options: CsvOptions = CsvOptions()) -> None:
        self.name, self.files = str(path), (path,)
        self._path, self._encoding = path, options.encoding
        self._delimiter = options.delimiter or self._recognized()
        self.decimals = Decimals(options.decimal, groups=self._delimiter != ";")
        if not options.delimiter and self._delimiter != ",":
            self.note = f"its cells are separated by {self._delimiter!r}"
        with self._opened() as reader:
            self._header: list[str] = next(reader, [])
        self.columns = tuple(name for name in self._header if name)
        if not self.columns or None not in map(number_in, self.columns):
            raise DataError(
                f"{path}: the first line is {self._header!r:.200}, but it has to name the columns. "
                "Put a line with a name for each column at the top of the file."
            )
        require_names(self.columns, self.name)

    def _recognized(self) -> str:
        """The first delimiter with as many cells in all lines, else with the most in the header."""
        with _text_file(self._path, self._encoding) as file:
            lines = list(islice(file, _SNIFFED_LINES))
        widths = {delimiter: _widths(lines, delimiter) for delimiter in _DELIMITERS}
        for delimiter, counts in widths.items():
            # The last line may be a part of a cell with line ends.
            if counts and counts[0] > 1 and set(counts[:-1]) <= {counts[0]}:
                return delimiter
        return max(widths, key=lambda delimiter: widths[delimiter][:1])

    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Cell]]:
        places = [self._header.index(name) for name in names]
        ragged: list[int] = []
        with self._opened() as reader:
            next(reader)
            for line in reader:
                if len(line) == len(self._header):
                    yield [line[place] for place in places]
                elif line:
                    ragged.append(reader.line_num)
        if ragged:
            raise DataError(
                f"{self.name}: {len(ragged)} lines do not have the {len(self._header)} cells that "
                f"the first line has names for: lines {listed(ragged, 20)}. Correct them, quote "
                "cells that hold the delimiter, or name another one: delimiter=;"
            )

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
        with _text_file(self._path, self._encoding) as file:
            try:
                yield csv.reader(file, delimiter=self._delimiter, strict=True)
            except csv.Error as error:
                raise DataError(
                    f"{self.name} cannot be read as CSV: {error}. Quote cells that hold quotes or "
                    "the delimiter, or convert the file to JSON lines."
                ) from error


def _widths(lines: Sequence[str], delimiter: str) -> list[int]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    with suppress(csv.Error):
        return [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
    return []


def require_names(columns: Collection[str], name: str) -> None:
    """Refuse too many columns, two of one name, and names that are no texts."""
    if len(columns) > MOST_COLUMNS:
        raise DataError(
            f"{name} has more than {MOST_COLUMNS} columns, {next(iter(columns))!r:.80} is the "
            "first. Give a row to each example, and many numbers as one tensor (features:PATH)."
        )
    twice = sorted(column for column, number in Counter(iter(columns)).items() if number > 1)
    if twice:
        raise DataError(
            f"{name} has the column {twice[0]!r:.80} more than once. Give each column its own name."
        )
    for column in columns:
        require_text(column, f"{name}: the name of a column")
        if len(column) > _LONGEST_NAME:
            raise DataError(
                f"{name} has a column whose name has {len(column)} characters, {column!r:.40}. "
                f"Give names of at most {_LONGEST_NAME}."
            )


@contextmanager
def _text_file(path: Path, encoding: str = "") -> Iterator[TextIO]:
    try:
        with open_regular(path) as raw:
            unpacked = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            with io.TextIOWrapper(unpacked, encoding or "utf-8-sig", newline="") as file:
                yield file
    except UnicodeError as error:
        likely = "latin-1"
        if isinstance(error, UnicodeDecodeError) and error.object[:2] in _UTF16:
            likely = "utf-16"
        raise DataError(
            f"{path} is not {encoding or 'UTF-8'}: {error}. For a CSV file write encoding={likely} "
            f"(--encoding {likely}), or convert it to UTF-8."
        ) from error
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}. Name a file of text.") from error


class JsonlTable(Table):
    """An object on each line, UTF-8, also gzipped; columns are the names of all lines."""

    def __init__(self, path: Path) -> None:
        self.name, self.files, self._path = str(path), (path,), path
        # A dictionary keeps the order; a set does not.
        columns: dict[str, None] = {}
        for line in self._objects():
            columns.update(dict.fromkeys(line))
            require_names(columns, self.name)
        self.columns = tuple(columns)

    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Cell]]:
        for number, line in enumerate(self._objects(), start=1):
            where = f"{self.name}, object {number}"
            yield [cell_of(line.get(name), where, name) for name in names]

    def _objects(self) -> Iterator[dict[str, Any]]:
        with _text_file(self._path) as file:
            for number, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    line = None
                if not isinstance(line, dict):
                    raise DataError(
                        f"{self.name}, line {number} is no JSON object: {text:.80}. Write one on "
                        'each line, such as {"text": "...", "label": "..."}.'
                    )
                yield line


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
        largest = max((found.total_byte_size for *_, found in self._groups), default=1)
        self._values = lru_cache(max(1, max_bytes // max(1, largest)))(self._load)
        # Row r is in the group k with starts[k] <= r < starts[k + 1].
        sizes = (found.num_rows for *_, found in self._groups)
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
        needed_for = f"the data set {source}"
        parquet = import_extra(
            "pyarrow.parquet", package="pyarrow", extra="parquet", needed_for=needed_for
        )
        self.name, self.files = path, _find_files(source, path)
        self.readers: dict[str, Any] = {}
        for file in self.files:
            try:
                opened = storage_of(source, file).open(file) if is_url(file) else file
                self.readers[file] = parquet.ParquetFile(opened)
            except (OSError, ValueError) as error:
                raise DataError(
                    f"{file} cannot be read as a Parquet file: {error}. Fetch it again, or name "
                    "another."
                ) from error
            columns = tuple(self.readers[file].schema_arrow.names)
            if file == self.files[0]:
                self.columns = columns
                require_names(columns, file)
            elif columns != self.columns:
                raise DataError(
                    f"{file} has the columns {', '.join(columns)}, not those of the first file: "
                    f"{', '.join(self.columns)}. Name files of one data set."
                )
        self.schema = self.readers[self.files[0]].schema_arrow
        self.class_names = {name: _class_names(self.schema, name) for name in self.columns}
        self.dates = {field.name for field in self.schema if _seconds_in(field.type)}

    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Cell]]:
        for file, reader in self.readers.items():
            try:
                for batch in reader.iter_batches(batch_size=CHUNK_ROWS, columns=list(names)):
                    columns = (_cells(batch.column(name), file, name) for name in names)
                    yield from zip(*columns, strict=True)
            except (OSError, ValueError, ArithmeticError) as error:
                raise DataError(
                    f"the columns {', '.join(names)} of {file} cannot be read: {error}. Fetch the "
                    "file again."
                ) from error


def _seconds_in(kind: Any) -> float:
    """The seconds of a unit of Arrow's dates, times and durations; 0 of other types."""
    text = str(kind)
    if text.startswith("date"):
        return 86_400 if text.startswith("date32") else 1e-3
    unit = re.match(r"(?:timestamp|time32|time64|duration)\[(s|ms|us|ns)\b", text)
    return {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit[1]] if unit else 0


def _cells(column: Any, file: str, name: str) -> list[Cell]:
    if seconds := _seconds_in(column.type):
        # As numbers: Python's dates end with the year 9999.
        wide = int(re.sub(r"\D", "", str(column.type).partition("[")[0]) or 64)
        numbers = column.view(f"int{wide}").to_pylist()
        return [None if number is None else number * seconds for number in numbers]
    return [cell_of(value, file, name) for value in column.to_pylist()]


def parquet_rows(source: str, path: str) -> EncodedRows:
    """The images of a Parquet file, or of a directory's training split, files in sorted order."""
    table = ParquetTable(source, path)
    stamp = Stamp.of(table.files)
    image_column, label_column = _image_and_label(table)
    labels = [label for (cells,) in table.chunks([label_column]) for label in cells]
    if not labels:
        raise DataError(f"{source} has no rows. Name the file that holds the training images.")
    for row, label in enumerate(labels):
        if not isinstance(label, int) or label > _LARGEST:  # uint64 only; tensors have signed types
            raise DataError(
                f"{table.name}, row {row}: the {label_column} is {label}. Give it a class number, "
                "counted from 0, or remove the row."
            )
    labels_N = torch.tensor(labels, dtype=torch.int64)
    groups = RowGroups(table.readers, image_column)
    return EncodedRows(
        *(source, table.class_names[label_column] or None, labels_N),
        open=lambda row: io.BytesIO(groups.read(row)),
        where=groups.where,
        stamp=stamp,
    )


def _find_files(source: str, path: str) -> list[str]:
    """A Parquet file, or a directory's: train*.parquet, those in a folder train, else all."""
    storage = storage_of(source, path)
    if storage.is_file(path):
        return [path]
    found = storage.listed(path, ".parquet", below=True)
    if not found:
        raise DataError(
            f"{source}: {path} is no file, and there is no *.parquet below it. Name a Parquet "
            "file, or a directory that holds some."
        )
    train = [name for name in found if re.search(r"/train([^/]*|/[^/]*)$", name)]
    directories = sorted({name.rpartition("/")[0] for name in train})
    if len(directories) > 1:
        raise DataError(
            f"{source}: {path} holds training files in {len(directories)} directories: "
            f"{', '.join(directories)}. Name the one to use."
        )
    return train or found


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


def open_table(path: str, kind: str, query: Query) -> Table:
    """A table of `kind` csv, jsonl or parquet; only the last may be a URL."""
    if kind == "csv":
        return CsvTable(Path(path), CsvOptions.of(query))
    return JsonlTable(Path(path)) if kind == "jsonl" else ParquetTable(query.source, path)
