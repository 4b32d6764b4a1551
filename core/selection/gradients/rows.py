"""Rows of products: some examples' vectors against all, for greedy choice one by one.

In float64, from blocks of rows: half-precision signals of any size can be given, and what
is equal in the data differs by so little that it compares equal in float32. So equal
examples tie wherever they stand, and on any block size.

Shapes: N examples, B rows asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.vectors import (
    Vectors,
    alignments,
    products,
    squared_norms,
    weighted_sum,
)

# Relative to a squared norm: more than the rounding of a squared distance, and less than
# float32 features that differ can make of it.
_RESOLUTION = 1e-12
# What a block of factors may take on the way to a sum.
_SUM_BYTES = 32 * 1024**2
# Factors up to this size in float64 are converted once instead of block by block.
_HELD_BYTES = 256 * 1024**2


class Rows:
    """The vectors of all examples, and the products among them.

    Attributes:
        squares_N: |v_i|^2, float64.
    """

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors.map(_double_if_small)
        self.squares_N = squared_norms(self._vectors)

    def __len__(self) -> int:
        return len(self._vectors)

    def products(self, positions_B: Tensor) -> Tensor:
        """The inner products of some examples with all; B x N float64."""
        some = self._vectors[positions_B].to(torch.float64)
        row_bytes = 8 * self._vectors.width + 16 * len(positions_B)
        parts = [
            products(some, self._vectors[rows].to(torch.float64))
            for rows in row_blocks(len(self), row_bytes)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def products_with_sum(self, weights_N: Tensor) -> Tensor:
        """<v_i, sum_j w_j v_j>, without an N x N matrix: the sum is one vector; N float64."""
        total = weighted_sum(self._vectors, weights_N, block_bytes=_SUM_BYTES)
        return alignments(self._vectors, total, block_bytes=_SUM_BYTES)

    def squared_distances(self, positions_B: Tensor) -> Tensor:
        """The squared distances of some examples from all, 0 from equal ones; B x N float64."""
        distances_BN = self.products(positions_B)
        torch.add(self.squares_N, distances_BN, alpha=-2, out=distances_BN)
        # Less what rounding may leave of the distance from an equal example.
        distances_BN += self.squares_N[positions_B, None] * (1 - _RESOLUTION)
        return distances_BN.clamp_(min=0.0)

    def squared_distances_from_mean(self) -> Tensor:
        """The squared distances from the mean of all vectors, 0 at the mean; N float64."""
        weights_N = torch.full_like(self.squares_N, 1 / len(self))
        products_N = self.products_with_sum(weights_N)
        # The mean product with the mean is the mean's squared norm.
        sums_N = self.squares_N + products_N.mean()
        distances_N = sums_N - 2 * products_N
        return distances_N.masked_fill_(distances_N <= _RESOLUTION * sums_N, 0.0)


class ScaledCosine:
    """(1 + cosine) / 2 of all vectors: 1 for the same direction, 0 for opposite ones.

    In [0, 1], as sums over a coverage need it, and positive semidefinite, as determinants
    do. A zero vector has no direction: its cosine is 0, with itself, too.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        norms_N = rows.squares_N.sqrt()
        self._inverse_norms_N = norms_N.reciprocal().masked_fill(norms_N == 0, 0.0)

    def rows(self, positions_B: Tensor) -> Tensor:
        """The similarity of some examples to all; B x N float64."""
        similarities_BN = self._rows.products(positions_B)
        similarities_BN *= self._inverse_norms_N[positions_B, None]
        similarities_BN *= self._inverse_norms_N
        return similarities_BN.add_(1).div_(2)

    def to_themselves(self) -> Tensor:
        """1, or 1/2 for a zero vector; N float64."""
        return (1 + (self._inverse_norms_N > 0).double()) / 2

    def column_sums(self) -> Tensor:
        """Each example's similarity to all, itself included, added up; N float64."""
        cosines_N = self._rows.products_with_sum(self._inverse_norms_N) * self._inverse_norms_N
        return (len(self._rows) + cosines_N) / 2


def _double_if_small(factor: Tensor) -> Tensor:
    return factor.double() if 8 * factor.numel() <= _HELD_BYTES else factor
