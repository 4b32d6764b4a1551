"""Tables: a label or targets, and texts or features as columns.

Classes are sorted by name, numbers by value, so files with the same classes agree; `classes=a,b,c`
names them for files that lack some. A column of only numbers or missing cells is numeric and is
standardized; a missing one is its column's mean in the same file, and with any missing, each column
of numbers has another one of flags. Any other is categorical: a cell's code is its text's digest,
salted with the column's name, modulo the number of buckets. Files opened separately then agree
without a vocabulary. A missing category is a category of its own.

Texts become tokens of one length, cut or padded. The built-in tokenizer gives a lower-cased word or
single punctuation mark the number of its digest; 0 is padding. A user's tokenizer is a file of
Hugging Face's `tokenizers`, whose numbers increase by 1. `names=huggingface` keeps the numbers and
the padding token, for a model trained on them.

Shapes: N rows, D columns of numbers, C columns of categories, T targets, L positions of a text.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from lipt.common.errors import ConfigError, DataError
from lipt.common.imports import import_extra
from lipt.common.text import listed
from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.inputs.standardization import stored
from lipt.data.sources.cells import (
    Cell,
    ColumnReading,
    Decimals,
    Notation,
    common_notation,
    is_missing,
    number_in,
    read_cells,
    unread_in,
)
from lipt.data.sources.rows import (
    ColumnRows,
    Labels,
    impute,
    labels_of_names,
    labels_of_targets,
)
from lipt.data.sources.storage import Query, Stamp, allocate_in_cache, at_home, split_query
from lipt.data.sources.table_files import CsvOptions, Table, open_table, require_columns
from lipt.data.targets.values import label_values, number_values

logger = logging.getLogger(__name__)

# A source has at most one; without any, the column `label` is a class.
_TARGETS = ("label", "target", "labels")
_OF_FEATURES = ("drop", "numbers", "categories", "buckets")
_OF_TEXT = ("text", "max_length", "tokenizer", "vocabulary", "names", "embedding")
_OPTIONS = (*_TARGETS, "classes", *_OF_FEATURES, *_OF_TEXT)
_DEFAULT_BUCKETS = 2**12
_DEFAULT_VOCABULARY = 2**15
_DEFAULT_LENGTH = 128
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
_PADDING_TOKENS = ("[PAD]", "<pad>", "<PAD>", "<|pad|>", "<|padding|>", "PAD")

# A column with more distinct fractions is a measurement, not a class.
_MOST_FRACTIONS = 100
# As pandas writes them, and as other files and frames have them.
_TRUTH = {"True": "true", "False": "false"}


def table_rows(source: str, path: str) -> ColumnRows:
    """The rows of a table, whose format `source` begins with; Parquet also by a URL."""
    kind = source.partition(":")[0]
    path, query = split_query(
        source, path, (*_OPTIONS, *(CsvOptions.NAMES if kind == "csv" else ()))
    )
    with_text = "text" in query
    for name in _OF_FEATURES if with_text else _OF_TEXT:
        if name in query:
            raise ConfigError(
                f"{source}: the option {name} cannot be used "
                f"{'with' if with_text else 'without'} text=COLUMN. Leave it out."
            )
    given = [name for name in _TARGETS if name in query]
    if len(given) > 1:
        raise ConfigError(
            f"{source}: {' and '.join(given)} were given together. Name a class (label=), "
            "numbers (target=), or labels of which a row may have several (labels=)."
        )
    return rows_of_table(query, open_table(path, kind, query))


def rows_of_table(query: Query, table: Table, given: Labels | None = None) -> ColumnRows:
    """A table's rows by a source's options; labels that are not in the table are `given`."""
    stamp = Stamp.of(table.files) if table.files else None
    wanted = next((name for name in _TARGETS if name in query), "label")
    target_columns = (query.text("label", "label"),) if wanted == "label" else query.names(wanted)
    labels = _labels(query, table, wanted, target_columns) if given is None else given
    notes, flagged, texts = [table.note], False, query.names("text")
    if texts:
        columns, tensors = token_columns(query, table, len(labels.labels_N))
        read = {name: ColumnReading(name, "text") for name in texts}
        unused = sorted(set(table.columns) - {*target_columns, *texts})
        if unused and not table.files:
            notes.append(f"only the texts of {', '.join(texts)} are used, not {', '.join(unused)}")
    else:
        columns, tensors, read, missing = feature_columns(query, table, target_columns)
        flagged = bool(missing)
        notes.append(missing)
    names = labels.names if wanted == "label" and given is None else ()
    read |= {
        name: ColumnReading(name, wanted, num_different=len(names or ()), names=names or ())
        for name in target_columns
    }
    return ColumnRows(
        *(query.source, labels.names, labels.labels_N, columns, tensors),
        stamp=stamp,
        targets=labels.targets,
        note="; ".join(filter(None, notes)),
        flagged=flagged,
        reading=tuple(read.get(name, ColumnReading(name, "not used")) for name in table.columns),
    )


def _labels(query: Query, table: Table, wanted: str, columns: tuple[str, ...]) -> Labels:
    require_columns(table, columns, wanted)
    if wanted == "label":
        return Labels(*read_labels(table, columns[0], query.names("classes")))
    numbers = read_numbers(table, columns, required=columns)
    values_NT = torch.from_numpy(np.stack([numbers[name][0] for name in columns], axis=1))
    if wanted == "labels":
        return labels_of_targets(label_values(values_NT, columns, table.name), table.name)
    targets = number_values(values_NT, columns, table.name)
    return Labels(targets.strata_N, targets.strata_names, targets)


def read_labels(
    table: Table, column: str, classes: Sequence[str] = ()
) -> tuple[Tensor, tuple[str, ...]]:
    """The labels as numbers from 0, int64, and the class names."""
    chunks = table.chunks([column])
    labels = [_name(cell) for (cells,) in chunks for cell in cells]
    missing = [row for row, label in enumerate(labels) if not label]
    if missing:
        raise DataError(
            f"{table.name}: {len(missing)} of {len(labels)} rows have no label in the column "
            f"{column}: rows {listed(missing, 20)}. Label or remove them."
        )
    if not labels:
        raise DataError(f"{table.name} has no rows. Give the training data.")
    found = set(labels)
    fractions = [number for number in map(number_in, found) if number and not number.is_integer()]
    many = len(fractions) > _MOST_FRACTIONS or are_too_many(len(found), len(labels))
    if many and not classes:
        raise DataError(
            f"{table.name}: the column {column} holds {len(found)} different labels in "
            f"{len(labels)} rows, {len(fractions)} of them fractions. Name the column of the "
            f"classes, label=COLUMN; for regression write target={column}"
        )
    named = table.class_names.get(column, ())
    names = tuple(classes) or named or tuple(sorted(found, key=_order))
    # In a file that names its numbers, cells are numbers.
    cells_of_names = tuple(map(str, range(len(named)))) if named and not classes else names
    return labels_of_names(labels, cells_of_names, table.name)[0], names


def are_too_many(num_different: int, num_rows: int) -> bool:
    """Whether so many different labels are a measurement rather than classes."""
    return num_different > max(_MOST_FRACTIONS, num_rows // 2)


def _name(cell: Cell) -> str:
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell).strip()


def _order(name: str) -> tuple[bool, float, str]:
    """Sort key: numbers by value, then words alphabetically."""
    number = number_in(name)
    return number is None, number or 0.0, name


def feature_columns(
    query: Query, table: Table, target_columns: tuple[str, ...]
) -> tuple[tuple[Column, ...], dict[str, Tensor], dict[str, ColumnReading], str]:
    """Numbers and categories, how each was read, and a note on the missing numbers."""
    for option in ("drop", "numbers", "categories"):
        require_columns(table, query.names(option), option)
    excluded = {*target_columns, *query.names("drop")}
    # Sorted, so that column order does not matter.
    used = sorted(set(table.columns) - excluded)
    if not used:
        raise DataError(
            f"{table.name} has no column besides {', '.join(sorted(excluded))}. Give columns to "
            "learn from."
        )
    candidates = [name for name in used if name not in query.names("categories")]
    numbers = read_numbers(table, candidates, required=query.names("numbers"))
    categories = [name for name in used if name not in numbers]
    columns: list[Column] = []
    tensors: dict[str, Tensor] = {}
    readings: dict[str, ColumnReading] = {}
    note = ""
    if numbers:
        values = np.stack([numbers[name].values_N for name in sorted(numbers)], axis=1)
        values_ND, note = impute(stored(torch.from_numpy(values)))
        name = "numbers" if categories else ""
        columns.append(standardized_column(name, values_ND))
        tensors[name] = values_ND
        readings = {name: numbers[name].reading(name, table) for name in numbers}
    if categories:
        buckets = query.number("buckets", _DEFAULT_BUCKETS, minimum=2, maximum=2**24)
        name = "categories" if numbers else ""
        columns.append(Column(name, ColumnType.INT64, (len(categories),), num_values=buckets))
        tensors[name], read = read_categories(table, categories, buckets)
        readings |= {one.name: one for one in read}
    logger.info("%s", table.name)
    for one in readings.values():
        logger.info("  %s", one)
    return tuple(columns), tensors, readings, note


def standardized_column(name: str, values_NP: Tensor) -> Column:
    kind = ColumnType(str(values_NP.dtype).removeprefix("torch."))
    return Column(name, kind, tuple(values_NP.shape[1:]), standardized=True)


class NumberColumn(NamedTuple):
    """A numeric column, NaN where a cell is missing, and how its cells are written."""

    values_N: NDArray[np.float64]
    notation: Notation

    def reading(self, name: str, table: Table) -> ColumnReading:
        known_N = self.values_N[~np.isnan(self.values_N)]
        whole = bool((known_N == np.floor(known_N)).all())
        notation = Notation.DATE if name in table.dates else self.notation
        if notation in (Notation.WHOLE, Notation.POINT):
            notation = Notation.WHOLE if whole else Notation.POINT
        return ColumnReading(
            name,
            notation.value,
            num_rows=len(self.values_N),
            num_missing=len(self.values_N) - len(known_N),
            num_different=len(np.unique(known_N)) if notation is Notation.WHOLE else 0,
            bounds=(float(known_N.min()), float(known_N.max())) if len(known_N) else None,
        )


def read_numbers(
    table: Table, columns: Sequence[str], *, required: Sequence[str]
) -> dict[str, NumberColumn]:
    """The numeric columns among some."""
    parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in columns}
    notations: dict[str, set[Notation]] = {name: set() for name in columns}
    begin = 0
    for chunk in table.chunks(columns):
        for name, cells in zip(columns, chunk, strict=True):
            if name not in parts:
                continue
            read, seen = read_cells(cells, table.decimals), notations[name]
            if read is None or common_notation(seen | _known(read)) is None:
                if name in required:
                    row = _first_unread(cells, table.decimals, seen)
                    raise DataError(
                        f"{table.name}: the column {name} is to be of numbers, but holds "
                        f"{cells[row]!r:.80} in row {begin + row}. Correct the row, or do not name "
                        "the column in numbers="
                    )
                del parts[name]
                continue
            infinite_N = np.isinf(read[0])
            if infinite_N.any():
                row = int(infinite_N.argmax())
                raise DataError(
                    f"{table.name}: the column {name} holds {cells[row]!r:.40} in row "
                    f"{begin + row}, no finite number. Correct it, or take the column as "
                    f"categories: categories={name}"
                )
            parts[name].append(read[0])
            notations[name] = seen | _known(read)
        begin += len(chunk[0]) if chunk else 0
    # A column with only missing cells is categorical.
    return {
        name: NumberColumn(
            np.concatenate(values), common_notation(notations[name]) or Notation.POINT
        )
        for name, values in parts.items()
        if values and (name in required or not all(np.isnan(part).all() for part in values))
    }


def _known(read: tuple[object, Notation | None]) -> set[Notation]:
    return set() if read[1] is None else {read[1]}


def _first_unread(cells: Sequence[Cell], decimals: Decimals, seen: set[Notation]) -> int:
    for row, cell in enumerate(cells):
        read = read_cells([cell], decimals)
        seen = seen if read is None else seen | _known(read)
        if read is None or common_notation(seen) is None:
            return row
    return 0


def read_categories(
    table: Table, columns: Sequence[str], buckets: int
) -> tuple[Tensor, list[ColumnReading]]:
    """Categorical columns side by side, N x C, int64 in 0..buckets-1, and how each was read."""
    parts = list[NDArray[np.int64]]()
    codes = [dict[str, int]() for _ in columns]
    missing, unread = [0] * len(columns), [""] * len(columns)
    for chunk in table.chunks(columns):
        codes_NC = np.empty((len(chunk[0]), len(columns)), np.int64)
        for place, (name, cells) in enumerate(zip(columns, chunk, strict=True)):
            texts = ["" if is_missing(cell) else str(cell).strip() for cell in cells]
            known = codes[place]
            for text in texts:
                if text not in known:
                    known[text] = bucket_of(name, _TRUTH.get(text, text), buckets)
            codes_NC[:, place] = [known[text] for text in texts]
            missing[place] += texts.count("")
            if not parts:
                unread[place] = unread_in(cells, table.decimals)
        parts.append(codes_NC)
    codes_NC = np.concatenate(parts)
    return torch.from_numpy(codes_NC), [
        ColumnReading(
            name,
            "categories",
            num_rows=len(codes_NC),
            num_missing=missing[place],
            num_different=len(codes[place].keys() - {""}),
            unread=unread[place],
        )
        for place, name in enumerate(columns)
    ]


def token_columns(
    query: Query, table: Table, num_texts: int
) -> tuple[tuple[Column, ...], dict[str, Tensor]]:
    texts = query.names("text")
    require_columns(table, texts, "text")
    length = query.number("max_length", _DEFAULT_LENGTH, minimum=1, maximum=2**16)
    if query.one_of("embedding", ("none", "wordllama")) == "wordllama":
        return embedded_texts(table.chunks(texts), length)
    huggingface = query.one_of("names", ("none", "huggingface")) == "huggingface"
    if "tokenizer" in query:
        path = Path(at_home(query.text("tokenizer")))
        tokenizer = file_tokenizer(path, length, keep_numbers=huggingface)
    else:
        vocabulary = query.number("vocabulary", _DEFAULT_VOCABULARY, minimum=2, maximum=2**24)
        tokenizer = hashing_tokenizer(length, vocabulary)
    chunks = table.chunks(texts)
    return text_columns(
        table.name, chunks, tokenizer, num_texts=num_texts, length=length, huggingface=huggingface
    )


def bucket_of(salt: str, text: str, buckets: int) -> int:
    """A text's bucket, stable across processes: its BLAKE2b digest modulo `buckets`."""
    # A key has at most 64 bytes; a column's name may be longer.
    key = hashlib.blake2b(salt.encode(), digest_size=32).digest()
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little") % buckets


@dataclass(frozen=True)
class Tokenizer:
    """Converts texts to numbers below `num_values`; `encode` also returns whether each was cut."""

    encode: Callable[[Sequence[str]], Iterator[tuple[list[int], bool]]]
    padding: int
    num_values: int


def hashing_tokenizer(max_length: int, vocabulary: int = _DEFAULT_VOCABULARY) -> Tokenizer:
    """The built-in tokenizer, with numbers in 1..vocabulary-1."""

    @cache
    def number(word: str) -> int:
        return 1 + bucket_of("word", word, vocabulary - 1)

    def encode(texts: Sequence[str]) -> Iterator[tuple[list[int], bool]]:
        for text in texts:
            words = _WORD_OR_MARK.findall(text.lower())
            yield [number(word) for word in words[:max_length]], len(words) > max_length

    return Tokenizer(encode, 0, vocabulary)


def file_tokenizer(path: Path, max_length: int, *, keep_numbers: bool) -> Tokenizer:
    """A user's tokenizer.json; special tokens count, and final ones stay when a text is cut."""
    tokenizers = import_extra(
        "tokenizers", package="tokenizers", extra="text", needed_for=f"the tokenizer {path}"
    )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)
    except Exception as error:  # tokenizers raises Exception itself
        raise DataError(
            f"the tokenizer {path} cannot be read: {error}. Name a tokenizer.json of Hugging "
            "Face's tokenizers."
        ) from error
    size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    found = (tokenizer.token_to_id(token) for token in _PADDING_TOKENS)
    own = next((number for number in found if number is not None), None)
    padding, shift = (own or 0, 0) if keep_numbers else (0, 1)

    def encode(texts: Sequence[str]) -> Iterator[tuple[list[int], bool]]:
        for encoded in tokenizer.encode_batch(list(texts)):
            yield [number + shift for number in encoded.ids], bool(encoded.overflowing)

    return Tokenizer(encode, padding, size + shift)


def embedded_texts(
    chunks: Iterable[Sequence[Sequence[Cell]]], length: int
) -> tuple[tuple[Column, ...], dict[str, Tensor]]:
    """Texts as the mean of wordllama's vectors of their tokens, N x 256; zeros for an empty one.

    The vectors are in the package's wheel, so nothing is fetched.
    """
    package = importlib.util.find_spec("wordllama")
    if package is None or package.origin is None:
        raise ConfigError(
            "embedding=wordllama needs the package 'wordllama'. Install it with: pip install "
            "--no-deps wordllama"
        )
    folder = Path(package.origin).parent
    (vectors_VD,) = load_file(folder / "weights/l2_supercat_256.safetensors").values()
    path = folder / "tokenizers/l2_supercat_tokenizer_config.json"
    tokenizer = file_tokenizer(path, length, keep_numbers=True)
    parts = []
    for chunk in chunks:
        for numbers, _ in tokenizer.encode(_joined(chunk)):
            known_LD = vectors_VD[torch.tensor(numbers, dtype=torch.int64)].float()
            parts.append(known_LD.sum(dim=0) / max(1, len(numbers)))
    embedded_ND = torch.stack(parts)
    shape = (embedded_ND.shape[1],)
    return (Column("", ColumnType.FLOAT32, shape, standardized=True),), {"": embedded_ND}


def _joined(chunk: Sequence[Sequence[Cell]]) -> list[str]:
    return [
        " ".join(str(cell) for cell in cells if cell is not None)
        for cells in zip(*chunk, strict=True)
    ]


def text_columns(
    name: str,
    chunks: Iterable[Sequence[Sequence[Cell]]],
    tokenizer: Tokenizer,
    *,
    num_texts: int,
    length: int,
    huggingface: bool = False,
) -> tuple[tuple[Column, ...], dict[str, Tensor]]:
    """Texts as tokens, N x L; joins several columns with a space.

    L does not depend on the texts, so that files opened separately agree. `name` is for the log, if
    any; `huggingface` makes the columns input_ids and attention_mask.
    """
    tokens_NL = allocate_in_cache((num_texts, length), torch.int64)
    sizes_N, num_cut, begin = np.zeros(num_texts, np.int32), 0, 0
    for chunk in chunks:
        joined = _joined(chunk)
        part_NL = np.full((len(joined), length), tokenizer.padding, np.int64)
        for row, (numbers, cut) in enumerate(tokenizer.encode(joined)):
            part_NL[row, : len(numbers)] = numbers
            sizes_N[begin + row] = len(numbers)
            num_cut += cut
        tokens_NL[begin : begin + len(joined)] = torch.from_numpy(part_NL)
        begin += len(joined)
    if name and num_cut:
        logger.warning(
            "%s: %d of %d texts (%.1f%%) are longer than %d tokens and cut there; "
            "max_length=%d would cut fewer",
            *(name, num_cut, num_texts, 100 * num_cut / num_texts, length, 2 * length),
        )
    kind, shape = ColumnType.INT64, (length,)
    if not huggingface:
        return (Column("", kind, shape, num_values=tokenizer.num_values),), {"": tokens_NL}
    columns = (
        Column("input_ids", kind, shape, num_values=tokenizer.num_values),
        Column("attention_mask", kind, shape, num_values=2),
    )
    mask_NL = allocate_in_cache((num_texts, length), torch.int64)
    torch.lt(torch.arange(length), torch.from_numpy(sizes_N)[:, None], out=mask_NL)
    return columns, {"input_ids": tokens_NL, "attention_mask": mask_NL}
