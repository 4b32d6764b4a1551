"""Levels: similarities as whole numbers, so that sums of them are exact.

Where examples represent others by weight, levels are those of weight times similarity.
A similarity becomes one of 2^b evenly spaced levels. With b = 24 that is all that float32
resolves; with fewer the matrix of all pairs takes half or a quarter of the memory, and of
the time to read it. Whole numbers add up to the same sum in any order: gains do not
depend on blocks, threads or devices, and ties are ties.

Shapes: N examples, n and m of them, T targets (all examples, but for the second round of
the partition greedy).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.pairs import (
    PairwiseSimilarity,
    represented,
    weighted,
)

Precision = Literal["24-bit", "16-bit", "8-bit"]

# Each one's type, and its highest level; finest first. Signed where torch has no arithmetic on
# unsigned ones: of 16 bits 15 are used.
_TYPES: dict[Precision, tuple[torch.dtype, int]] = {
    "24-bit": (torch.int32, 2**24 - 1),
    "16-bit": (torch.int16, 2**15 - 1),
    "8-bit": (torch.uint8, 2**8 - 1),
}
# 52,440 examples with 8-bit levels.
MATRIX_BYTES = 2_750_000_000
# Beyond these a coarser matrix is as good and faster, as reading it is what takes time.
_FINE_BYTES: dict[Precision, int] = {"24-bit": 2**28, "16-bit": 2**30}
# How many examples' similarities with each other show the range.
_NUM_OBSERVED = 1024
# A tile of products and what is made of it stay in a CPU's cache; a GPU wants more at a time.
_CPU_TILE = 512
_GPU_TILE = 4096


def affordable_precision(num_rows: int, num_columns: int, matrix_bytes: int) -> Precision | None:
    """The finest levels whose matrix may be held; None where not even the coarsest may."""
    for precision, (dtype, _) in _TYPES.items():
        limit = min(matrix_bytes, _FINE_BYTES.get(precision, matrix_bytes))
        if num_rows * num_columns * dtype.itemsize <= limit:
            return precision
    return None


def most_examples(matrix_bytes: int) -> int:
    """How many examples can all be compared with each other, by levels of one byte."""
    return max(1, math.isqrt(matrix_bytes))


class LevelRows(Protocol):
    """Where the levels of some examples with all others come from."""

    def __len__(self) -> int: ...

    def rows(self, ids_n: Tensor) -> Tensor:
        """The levels of some examples with all; n x N of an integer type."""
        ...


@dataclass(frozen=True)
class Scale:
    """The levels: 0 for `lowest` and less, `num_levels - 1` for `highest`."""

    lowest: float
    highest: float
    precision: Precision

    def levels(self, similarities_nm: Tensor) -> Tensor:
        """The nearest level of each similarity; the argument is overwritten."""
        dtype, top = _TYPES[self.precision]
        reach = self.highest - self.lowest
        # All similarities are the same where there is no range: any level will do.
        factor = top / reach if reach > 0 else 0.0
        similarities_nm.sub_(self.lowest).mul_(factor).round_().clamp_(0, top)
        return similarities_nm.to(dtype)


@dataclass(frozen=True)
class StoredLevels:
    """The levels of N examples with T others, or with each other.

    matrix_NT: row i, contiguous, is what example i is to the others.
    sums_N: of its rows, int64.
    """

    matrix_NT: Tensor
    sums_N: Tensor

    def __len__(self) -> int:
        return len(self.matrix_NT)

    def rows(self, ids_n: Tensor) -> Tensor:
        """The levels of some examples with all; n x N."""
        return self.matrix_NT[ids_n]


@dataclass(frozen=True)
class ComputedLevels:
    """The levels of pairs, computed each time: no more than the rows asked for is held."""

    similarity: PairwiseSimilarity
    scale: Scale

    def __len__(self) -> int:
        return len(self.similarity)

    def rows(self, ids_n: Tensor) -> Tensor:
        """The levels of some examples with all; n x N."""
        row_bytes = 8 * max(len(ids_n), self.similarity.width)
        return torch.cat(
            [
                self.scale.levels(represented(self.similarity, ids_n, columns))
                for columns in row_blocks(len(self), row_bytes)
            ],
            dim=1,
        )


def fit_scale(similarity: PairwiseSimilarity, precision: Precision) -> Scale:
    """Levels between the similarity's bounds.

    Few levels must not be spent on what decides nothing: who represents whom is decided by
    the high similarities. 8-bit levels start where a quarter of some evenly spaced
    examples' similarities with each other lie below; a pair below counts as that low.
    """
    lowest = similarity.lowest
    if precision == "8-bit":
        step = max(1, len(similarity) // _NUM_OBSERVED)
        observed_n = torch.arange(0, len(similarity), step, device=similarity.device)
        observed = represented(similarity, observed_n, observed_n).flatten().sort().values
        quartile, least = float(observed[len(observed) // 4]), float(observed[0])
        # Where most pairs are the same, all that there is to tell apart lies below.
        lowest = quartile if quartile < float(observed[-1]) else least
    return Scale(min(lowest, similarity.highest), similarity.highest, precision)


def store_levels(similarity: PairwiseSimilarity, scale: Scale) -> StoredLevels:
    """The levels of all pairs; each pair of examples is compared once."""
    num_examples, device = len(similarity), similarity.device
    matrix_NN = _room((num_examples, num_examples), scale.precision, device)
    sums_N = torch.zeros(num_examples, dtype=torch.int64, device=device)
    tiles = _even_tiles(num_examples, device)
    for number, rows in enumerate(tiles):
        for columns in tiles[number:]:
            levels_nm, levels_mn = _both_ways(similarity, scale, rows, columns)
            matrix_NN[rows, columns] = levels_nm
            sums_N[rows] += levels_nm.sum(dim=1, dtype=torch.int64)
            if rows != columns:
                matrix_NN[columns, rows] = levels_mn.contiguous()
                sums_N[columns] += levels_mn.sum(dim=1, dtype=torch.int64)
    return StoredLevels(matrix_NN, sums_N)


def _both_ways(
    similarity: PairwiseSimilarity, scale: Scale, rows: slice, columns: slice
) -> tuple[Tensor, Tensor]:
    """The levels of some examples with others, and of these with them: n x m and m x n."""
    similarities_nm = similarity.block(rows, columns)
    if rows == columns:
        # Products round differently below the diagonal, and two examples that tie because
        # each is the other's nearest would not.
        similarities_nm = similarities_nm.triu() + similarities_nm.triu(diagonal=1).T
    if similarity.weights_N is None:
        levels_nm = scale.levels(similarities_nm)
        return levels_nm, levels_nm.T
    return (
        scale.levels(weighted(similarity, similarities_nm, rows)),
        scale.levels(weighted(similarity, similarities_nm.T, columns)),
    )


def store_levels_between(
    similarity: PairwiseSimilarity, scale: Scale, candidates_N: Tensor, targets_T: Tensor
) -> StoredLevels:
    """The levels of the candidates with the targets, by ids; row i is that of candidates_N[i]."""
    device = similarity.device
    shape = (len(candidates_N), len(targets_T))
    matrix_NT = _room(shape, scale.precision, device)
    sums_N = torch.zeros(len(candidates_N), dtype=torch.int64, device=device)
    for rows in _even_tiles(len(candidates_N), device):
        for columns in _even_tiles(len(targets_T), device):
            levels_nm = scale.levels(
                represented(similarity, candidates_N[rows], targets_T[columns])
            )
            matrix_NT[rows, columns] = levels_nm
            sums_N[rows] += levels_nm.sum(dim=1, dtype=torch.int64)
    return StoredLevels(matrix_NT, sums_N)


def _room(shape: tuple[int, int], precision: Precision, device: torch.device) -> Tensor:
    """An uninitialized matrix; on a CPU numpy's, which asks for huge pages where there are any."""
    dtype, _ = _TYPES[precision]
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, np.dtype(str(dtype).removeprefix("torch."))))


def _even_tiles(num_rows: int, device: torch.device) -> list[slice]:
    """Consecutive slices of nearly equal length: products of a few rows round differently."""
    count = -(-num_rows // (_CPU_TILE if device.type == "cpu" else _GPU_TILE))
    edges = [num_rows * number // count for number in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
