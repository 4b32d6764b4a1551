"""Table data sets: the options of a name, and the rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from lipt.common.data.sources.index import Stamp
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.data.sources.tables.columns import (
    KINDS,
    categories_tensor,
    numbers_tensor,
    read_labels,
    read_numbers,
    read_table_targets,
    target_columns,
)
from lipt.common.data.sources.tables.files import (
    CsvTable,
    JsonlTable,
    ParquetTable,
    Table,
    require_columns,
)
from lipt.common.data.sources.tables.query import Query, read_query, split_query
from lipt.common.data.sources.tables.texts import (
    DEFAULT_LENGTH,
    DEFAULT_VOCABULARY,
    file_tokenizer,
    hashing_tokenizer,
    text_columns,
)
from lipt.common.errors import ConfigError, DataError
from lipt.common.inputs.columns import Column, ColumnType

# Rows of a table, by the options of its source: texts where it names some, else features.
#
# Where an example is one tensor it has no name, so that a model takes it as its only argument.
#
# Shapes: N rows, D columns of numbers, C columns of categories.

logger = logging.getLogger(__name__)

_OF_ANY = (*KINDS, "classes")
_OF_FEATURES = ("drop", "numbers", "categories", "missing", "buckets")
_OF_TEXT = ("text", "max_length", "tokenizer", "vocabulary", "names")
OPTIONS = (*_OF_ANY, *_OF_FEATURES, *_OF_TEXT)
_DEFAULT_BUCKETS = 2**12


def csv_rows(source: str, path: Path) -> ColumnRows:
    """The rows of a CSV file.

    Args:
        source: the name under which the user opens them.
        path: the file, and after a question mark its options, which are those of `OPTIONS`, and
            `delimiter`.

    Raises:
        ConfigError: an option does not exist, or cannot be used.
        DataError: the file, a column or a label cannot be used.
        MissingExtraError: a tokenizer file is named, and `tokenizers` is not installed.
    """
    file, query = split_query(source, path, (*OPTIONS, "delimiter"))
    return _rows(query, lambda: CsvTable(file, query.text("delimiter", ",")))


def jsonl_rows(source: str, path: Path) -> ColumnRows:
    """The rows of a file of JSON lines; as `csv_rows`, without `delimiter`."""
    file, query = split_query(source, path, OPTIONS)
    return _rows(query, lambda: JsonlTable(file))


def parquet_table_rows(source: str, path: str) -> ColumnRows:
    """The rows of Parquet files without images, by a path or a URL; as `jsonl_rows`.

    Raises:
        MissingExtraError: pyarrow is not installed, or for a URL fsspec.
    """
    file, query = read_query(source, path, OPTIONS)
    return _rows(query, lambda: ParquetTable(source, file))


def _rows(query: Query, opened: Callable[[], Table]) -> ColumnRows:
    _require_together(query)
    table = opened()
    stamp = Stamp.of(table.files)
    told = target_columns(query)
    targets = read_table_targets(query, table)
    if targets is None:
        require_columns(table, told, "label")
        labels_N, names = read_labels(table, told[0], query.names("classes"))
    else:
        labels_N, names = targets.strata_N, targets.strata_names
    if "text" in query:
        columns, tensors = _text(query, table, len(labels_N))
    else:
        columns, tensors = _features(query, table, told)
    return ColumnRows(query.source, names, labels_N, columns, tensors, stamp=stamp, targets=targets)


def _require_together(query: Query) -> None:
    unused = _OF_FEATURES if "text" in query else _OF_TEXT
    for name in unused:
        if name in query:
            of = "columns of numbers and categories" if "text" in query else "text"
            raise ConfigError(
                f"{query.source}: the option {name} is for {of}, which are not read "
                f"{'with' if 'text' in query else 'without'} text=COLUMN. Leave it out."
            )


def _features(
    query: Query, table: Table, told: tuple[str, ...]
) -> tuple[tuple[Column, ...], dict[str, Tensor]]:
    for option in ("drop", "numbers", "categories"):
        require_columns(table, query.names(option), option)
    forced, given = query.names("numbers"), query.names("categories")
    left_out = {*told, *query.names("drop")}
    # Sorted, so that files agree whose columns stand in another order.
    used = sorted(set(table.columns) - left_out)
    if not used:
        raise DataError(
            f"{table.name} has no column besides {', '.join(sorted(left_out))}. Give columns to "
            "learn from."
        )
    numbers = read_numbers(table, [name for name in used if name not in given], required=forced)
    categories = [name for name in used if name not in numbers]
    columns: list[Column] = []
    tensors: dict[str, Tensor] = {}
    if numbers:
        marked = query.one_of("missing", ("mean", "marked")) == "marked"
        values_ND = numbers_tensor([numbers[name] for name in sorted(numbers)], marked=marked)
        name = "numbers" if categories else ""
        shape = (values_ND.shape[1],)
        columns.append(Column(name, ColumnType.FLOAT32, shape, standardized=True))
        tensors[name] = values_ND
    if categories:
        buckets = query.number("buckets", _DEFAULT_BUCKETS, minimum=2, maximum=2**24)
        name = "categories" if numbers else ""
        columns.append(Column(name, ColumnType.INT64, (len(categories),), num_values=buckets))
        tensors[name] = categories_tensor(table, categories, buckets)
    logger.info(
        "%s: %d columns of numbers (%s) and %d of categories (%s)",
        table.name,
        len(numbers),
        ", ".join(sorted(numbers)),
        len(categories),
        ", ".join(categories),
    )
    return tuple(columns), tensors


def _text(
    query: Query, table: Table, num_texts: int
) -> tuple[tuple[Column, ...], dict[str, Tensor]]:
    texts = query.names("text")
    require_columns(table, texts, "text")
    length = query.number("max_length", DEFAULT_LENGTH, minimum=1, maximum=2**16)
    huggingface = query.one_of("names", ("none", "huggingface")) == "huggingface"
    if "tokenizer" in query:
        path = Path(query.text("tokenizer", "")).expanduser()
        tokenizer = file_tokenizer(path, length, keep_numbers=huggingface)
    else:
        vocabulary = query.number("vocabulary", DEFAULT_VOCABULARY, minimum=2, maximum=2**24)
        tokenizer = hashing_tokenizer(length, vocabulary)
    chunks = table.chunks(texts)
    return text_columns(
        table.name, chunks, tokenizer, num_texts=num_texts, length=length, huggingface=huggingface
    )
