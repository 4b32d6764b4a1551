"""Texts: as tokens of one length, cut or filled up, and what that costs told in the log.

Shapes: N texts, L places.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.data.sources.large import room_for
from lipt.common.data.sources.tables.cells import Cell
from lipt.common.data.sources.tables.tokens import Tokenizer
from lipt.common.inputs.columns import Column, ColumnType

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
