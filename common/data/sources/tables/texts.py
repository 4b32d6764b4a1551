"""Text columns: tokens, and a vocabulary."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.data.sources.index import room_for
from lipt.common.data.sources.tables.columns import bucket_of
from lipt.common.data.sources.tables.files import Cell
from lipt.common.errors import DataError
from lipt.common.imports import import_extra
from lipt.common.inputs.columns import Column, ColumnType

# Tokens: texts as rows of whole numbers, with a tokenizer of the user's or a built-in one.
#
# The built-in one needs no file and knows no vocabulary: lower-cased words and single marks, each
# with the number of its text's digest, so that files that are opened apart agree. Two words share a
# number with a probability of 1 in as many numbers as there are; with the default 32,767, one in
# six of a set's 6,000 words shares its own with another. Number 0 is padding.
#
# A user's is a file of Hugging Face's `tokenizers`. Its own padding token becomes 0, and the token
# that had 0 takes that one's number; where it has no padding token, all numbers are 1 more. With
# `names=huggingface` the numbers stay as they are, for a model that was trained on them.
#
# Shapes: N texts, L places.

DEFAULT_VOCABULARY = 2**15
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
_SALT = "word"
_PADDING_TOKENS = ("[PAD]", "<pad>", "<PAD>", "<|pad|>", "<|padding|>", "PAD")


@dataclass(frozen=True)
class Tokenizer:
    """What makes texts into numbers.

    Attributes:
        encode: each text's numbers, at most as many as it was made for, and whether some were
            cut off.
        padding: the number that fills a row up.
        num_values: all numbers are below it.
    """

    encode: Callable[[Sequence[str]], Iterator[tuple[list[int], bool]]]
    padding: int
    num_values: int


def hashing_tokenizer(max_length: int, vocabulary: int = DEFAULT_VOCABULARY) -> Tokenizer:
    """The built-in one, with numbers in 1..vocabulary-1."""
    known: dict[str, int] = {}

    def number(word: str) -> int:
        found = known.get(word)
        if found is None:
            found = known[word] = 1 + bucket_of(_SALT, word, vocabulary - 1)
        return found

    def encode(texts: Sequence[str]) -> Iterator[tuple[list[int], bool]]:
        for text in texts:
            words = _WORD_OR_MARK.findall(text.lower())
            yield [number(word) for word in words[:max_length]], len(words) > max_length

    return Tokenizer(encode, 0, vocabulary)


def file_tokenizer(path: Path, max_length: int, *, keep_numbers: bool) -> Tokenizer:
    """A user's.

    Args:
        path: a tokenizer.json.
        max_length: L; special tokens count, and those at the end stay when a text is cut.
        keep_numbers: whether padding may have another number than 0.

    Raises:
        DataError: there is no such file, or `tokenizers` cannot read it.
        MissingExtraError: the package is not installed.
    """
    tokenizers = import_extra(
        "tokenizers", package="tokenizers", extra="text", needed_for=f"the tokenizer {path}"
    )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)
    except Exception as error:  # it raises Exception itself
        raise DataError(
            f"the tokenizer {path} cannot be read: {error}. Name a tokenizer.json of Hugging "
            "Face's tokenizers."
        ) from error
    size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    found = (tokenizer.token_to_id(token) for token in _PADDING_TOKENS)
    own = next((number for number in found if number is not None), None)
    numbers: Sequence[int] = range(size)
    if not keep_numbers:
        numbers = range(1, size + 1) if own is None else _exchanged(size, own)

    def encode(texts: Sequence[str]) -> Iterator[tuple[list[int], bool]]:
        for encoded in tokenizer.encode_batch(list(texts)):
            yield [numbers[number] for number in encoded.ids], bool(encoded.overflowing)

    return Tokenizer(encode, (own or 0) if keep_numbers else 0, max(numbers) + 1)


def _exchanged(size: int, own: int) -> list[int]:
    """All numbers by their old ones: 0 and that of the padding token change places."""
    numbers = list(range(size))
    numbers[0], numbers[own] = own, 0
    return numbers


# Texts: as tokens of one length, cut or filled up, and what that costs told in the log.
#
# Shapes: N texts, L places.

logger = logging.getLogger(__name__)

DEFAULT_LENGTH = 128


def text_columns(
    name: str,
    chunks: Iterable[Sequence[Sequence[Cell]]],
    tokenizer: Tokenizer,
    *,
    num_texts: int,
    length: int,
    huggingface: bool = False,
) -> tuple[tuple[Column, ...], dict[str, Tensor]]:
    """Texts as tokens, N x L; what is cut off is told in the log.

    The length is that which is asked for, whatever the texts', so that files agree that are
    opened apart.

    Args:
        name: how the log calls their file; empty tells nothing.
        chunks: rows of cells by column; the columns' texts follow each other with a space between.
        tokenizer: made for this length.
        num_texts: N, which the chunks have together.
        length: L.
        huggingface: whether the columns are input_ids and attention_mask.
    """
    tokens_NL = room_for((num_texts, length), torch.int64)
    sizes_N, num_cut, begin = np.zeros(num_texts, np.int32), 0, 0
    for chunk in chunks:
        joined = [
            " ".join(str(cell) for cell in cells if cell is not None)
            for cells in zip(*chunk, strict=True)
        ]
        part_NL = np.full((len(joined), length), tokenizer.padding, np.int64)
        for row, (numbers, cut) in enumerate(tokenizer.encode(joined)):
            part_NL[row, : len(numbers)] = numbers
            sizes_N[begin + row] = len(numbers)
            num_cut += cut
        tokens_NL[begin : begin + len(joined)] = torch.from_numpy(part_NL)
        begin += len(joined)
    if name:
        _tell_lengths(name, sizes_N, num_cut, length)
    kind, shape = ColumnType.INT64, (length,)
    if not huggingface:
        return (Column("", kind, shape, num_values=tokenizer.num_values),), {"": tokens_NL}
    columns = (
        Column("input_ids", kind, shape, num_values=tokenizer.num_values),
        Column("attention_mask", kind, shape, num_values=2),
    )
    mask_NL = room_for((num_texts, length), torch.int64)
    torch.lt(torch.arange(length), torch.from_numpy(sizes_N)[:, None], out=mask_NL)
    return columns, {"input_ids": tokens_NL, "attention_mask": mask_NL}


def _tell_lengths(name: str, sizes_N: NDArray[np.int32], num_cut: int, length: int) -> None:
    empty, longest = int((sizes_N == 0).sum()), int(sizes_N.max())
    if empty:
        logger.warning("%s: %d of %d texts are empty", name, empty, len(sizes_N))
    if num_cut:
        share = num_cut / len(sizes_N)
        logger.warning(
            "%s: %d of %d texts (%.1f%%) are longer than %d tokens and cut there; "
            "max_length=%d would cut fewer",
            name,
            num_cut,
            len(sizes_N),
            100 * share,
            length,
            2 * length,
        )
    elif longest <= length // 2:
        logger.warning(
            "%s: no text is longer than %d tokens; max_length=%d would be faster",
            name,
            longest,
            longest,
        )
