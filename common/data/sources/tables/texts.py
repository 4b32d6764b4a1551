"""Texts: as tokens of one length, cut or filled up, and what that costs told in the log.

Shapes: N texts, L places.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

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
        length: L.
        huggingface: whether the columns are input_ids and attention_mask.
    """
    tokens, sizes, num_cut = [], [], 0
    for chunk in chunks:
        joined = [
            " ".join(str(cell) for cell in cells if cell is not None)
            for cells in zip(*chunk, strict=True)
        ]
        part_NL = np.full((len(joined), length), tokenizer.padding, np.int64)
        for row, (numbers, cut) in enumerate(tokenizer.encode(joined)):
            part_NL[row, : len(numbers)] = numbers
            sizes.append(len(numbers))
            num_cut += cut
        tokens.append(part_NL)
    if name:
        _tell_lengths(name, sizes, num_cut, length)
    tokens_NL = torch.from_numpy(np.concatenate(tokens))
    kind, shape = ColumnType.INT64, (length,)
    if not huggingface:
        return (Column("", kind, shape, num_values=tokenizer.num_values),), {"": tokens_NL}
    columns = (
        Column("input_ids", kind, shape, num_values=tokenizer.num_values),
        Column("attention_mask", kind, shape, num_values=2),
    )
    mask_NL = torch.arange(length) < torch.tensor(sizes)[:, None]
    return columns, {"input_ids": tokens_NL, "attention_mask": mask_NL.long()}


def _tell_lengths(name: str, sizes: Sequence[int], num_cut: int, length: int) -> None:
    empty = sum(size == 0 for size in sizes)
    if empty:
        logger.warning("%s: %d of %d texts are empty", name, empty, len(sizes))
    if num_cut:
        share = num_cut / len(sizes)
        logger.warning(
            "%s: %d of %d texts (%.1f%%) are longer than %d tokens and cut there; "
            "max_length=%d would cut fewer",
            name,
            num_cut,
            len(sizes),
            100 * share,
            length,
            2 * length,
        )
    elif max(sizes) <= length // 2:
        logger.warning(
            "%s: no text is longer than %d tokens; max_length=%d would be faster",
            name,
            max(sizes),
            max(sizes),
        )
