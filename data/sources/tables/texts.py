"""Texts of a table: tokens of one length, cut or padded, or embeddings by a user's function.

The built-in tokenizer gives a lower-cased word or single punctuation mark the number of its digest;
0 is padding. A user's tokenizer is a file of Hugging Face's `tokenizers`, whose numbers increase by
1. `names=huggingface` keeps the numbers and the padding token, for a model trained on them.

Shapes: N rows, L positions of a text.
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
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from lipt.common.errors import ConfigError, DataError
from lipt.common.imports import import_extra
from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.sources.address import Address, at_home
from lipt.data.sources.storage import allocate_in_cache
from lipt.data.sources.tables.table import Table, require_columns

logger = logging.getLogger(__name__)

_DEFAULT_VOCABULARY = 2**15
_DEFAULT_LENGTH = 128
# Of a user's tokenizer: its file, and numbers beside a few more of this package's.
_MOST_BYTES, MOST_NUMBERS = 2**28, 2**20 - 8
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
_PADDING_TOKENS = ("[PAD]", "<pad>", "<PAD>", "<|pad|>", "<|padding|>", "PAD")


def token_columns(
    options: Address, table: Table, num_texts: int
) -> tuple[tuple[Column, ...], dict[str, Tensor]]:
    texts = options.names("text")
    require_columns(table, texts, "text")
    length = options.number("max_length", _DEFAULT_LENGTH, minimum=1, maximum=2**16)
    if options.one_of("embedding", ("none", "wordllama")) == "wordllama":
        return embedded_texts(_texts(table, texts), length)
    huggingface = options.one_of("names", ("none", "huggingface")) == "huggingface"
    if "tokenizer" in options:
        path = Path(at_home(options.text("tokenizer")))
        tokenizer = file_tokenizer(path, length, keep_numbers=huggingface)
    else:
        vocabulary = options.number("vocabulary", _DEFAULT_VOCABULARY, minimum=2, maximum=2**24)
        tokenizer = hashing_tokenizer(length, vocabulary)
    return text_columns(
        table.name,
        _texts(table, texts),
        tokenizer,
        num_texts=num_texts,
        length=length,
        huggingface=huggingface,
    )


def _texts(table: Table, columns: Sequence[str]) -> Iterator[list[str]]:
    """Batches of texts; several columns are joined with a space."""
    for batch in table.batches(columns):
        rows = zip(*(column.to_pylist() for column in batch), strict=True)
        yield [" ".join(str(cell) for cell in cells if cell is not None) for cells in rows]


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
    tokenizer, size = opened_tokenizer(path)
    tokenizer.enable_truncation(max_length)
    token_ids = (tokenizer.token_to_id(token) for token in _PADDING_TOKENS)
    own = next((number for number in token_ids if number is not None), None)
    padding, shift = (own or 0, 0) if keep_numbers else (0, 1)

    def encode(texts: Sequence[str]) -> Iterator[tuple[list[int], bool]]:
        for encoded in tokenizer.encode_batch(list(texts)):
            yield [number + shift for number in encoded.ids], bool(encoded.overflowing)

    return Tokenizer(encode, padding, size + shift)


def opened_tokenizer(path: Path) -> tuple[Any, int]:
    """A tokenizer without padding or truncation, and one more than its largest number."""
    tokenizers = import_extra(
        "tokenizers", package="tokenizers", extra="text", needed_for=f"the tokenizer {path}"
    )
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    if size > _MOST_BYTES:
        raise DataError(
            f"the tokenizer {path} has {size} bytes; at most {_MOST_BYTES} are read. Name a "
            "tokenizer.json of a language model."
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.no_truncation()
    except Exception as error:  # tokenizers raises Exception itself
        raise DataError(
            f"the tokenizer {path} cannot be read: {error}. Name a tokenizer.json of Hugging "
            "Face's tokenizers."
        ) from error
    number = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if number > MOST_NUMBERS:
        raise DataError(
            f"the tokenizer {path} has {number} numbers; at most {MOST_NUMBERS} are taken. Name "
            "one of a language model, of some hundred thousand at most."
        )
    return tokenizer, number


def embedded_texts(
    batches: Iterable[list[str]], length: int
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
    for batch in batches:
        for numbers, _ in tokenizer.encode(batch):
            known_LD = vectors_VD[torch.tensor(numbers, dtype=torch.int64)].float()
            parts.append(known_LD.sum(dim=0) / max(1, len(numbers)))
    embedded_ND = torch.stack(parts)
    shape = (embedded_ND.shape[1],)
    return (Column("", ColumnType.FLOAT32, shape, standardized=True),), {"": embedded_ND}


def text_columns(
    name: str,
    batches: Iterable[list[str]],
    tokenizer: Tokenizer,
    *,
    num_texts: int,
    length: int,
    huggingface: bool = False,
) -> tuple[tuple[Column, ...], dict[str, Tensor]]:
    """Texts as tokens, N x L.

    L does not depend on the texts, so that files opened separately agree. `name` is for the log, if
    any; `huggingface` makes the columns input_ids and attention_mask.
    """
    tokens_NL = allocate_in_cache((num_texts, length), torch.int64)
    sizes_N, num_cut, begin = np.zeros(num_texts, np.int32), 0, 0
    for batch in batches:
        part_NL = np.full((len(batch), length), tokenizer.padding, np.int64)
        for row, (numbers, cut) in enumerate(tokenizer.encode(batch)):
            part_NL[row, : len(numbers)] = numbers
            sizes_N[begin + row] = len(numbers)
            num_cut += cut
        tokens_NL[begin : begin + len(batch)] = torch.from_numpy(part_NL)
        begin += len(batch)
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
