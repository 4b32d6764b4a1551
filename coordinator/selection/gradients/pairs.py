"""Similarities of all pairs of examples: distances or cosines of their vectors, in blocks.

In float32, for solvers that read N x N pairs. Two vectors whose difference float32 cannot
resolve are taken as equal. Otherwise the distance of duplicates would be sqrt(rounding)
instead of 0, a thousand times more than the rounding itself, and strategies would pay for
examples that bring nothing new.

Shapes: N examples, n and m of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipt.coordinator.selection.gradients.vectors import Vectors, products, squared_norms
from lipt.coordinator.signals.blocks import row_blocks

# What a float32 product of some thousand terms resolves, relative to the squared norms.
RESOLUTION = 2.0**-20


@dataclass(frozen=True)
class PairwiseSimilarity:
    """Symmetric similarities of N examples; none is larger than that of equal examples.

    vectors: of the N examples.
    squares_N: their squared norms, float32.
    from_products: (products_nm, squares_n, squares_m) -> similarities_nm, in place.
    lowest, highest: bounds of the similarities, and of what they are times the weights.
    weights_N: how well each example represents others of the same similarity, float32; all
        the same where None.
    """

    vectors: Vectors
    squares_N: Tensor
    from_products: Callable[[Tensor, Tensor, Tensor], Tensor]
    lowest: float
    highest: float
    weights_N: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        return self.vectors.device

    def block(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """The similarities of some examples with others; n x m float32."""
        left, right = (self.vectors[ids].to(torch.float32) for ids in (rows, columns))
        return self.from_products(
            products(left, right), self.squares_N[rows], self.squares_N[columns]
        )

    def represented(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """How well some examples represent others: weight times similarity; n x m float32."""
        return self.weighted(self.block(rows, columns), rows)

    def weighted(self, similarities_nm: Tensor, rows: slice | Tensor) -> Tensor:
        """The similarities of some examples times their weights; not copied without weights."""
        if self.weights_N is None:
            return similarities_nm
        return similarities_nm * self.weights_N[rows, None]

    def take(self, ids_n: Tensor) -> PairwiseSimilarity:
        """The similarities among some of the examples, with the same bounds."""
        return replace(
            self,
            vectors=self.vectors[ids_n],
            squares_N=self.squares_N[ids_n],
            weights_N=None if self.weights_N is None else self.weights_N[ids_n],
        )


def proximity(vectors: Vectors) -> PairwiseSimilarity:
    """Minus the Euclidean distance, 0 for equal vectors.

    No pair is farther apart than twice the largest distance from any one example.
    """
    squares_N = squared_norms(vectors).float()
    unbounded = PairwiseSimilarity(vectors, squares_N, _minus_distances, -torch.inf, 0.0)
    farthest = min(
        float(unbounded.block(slice(0, 1), rows).min())
        for rows in row_blocks(len(vectors), 4 * vectors.width)
    )
    return replace(unbounded, lowest=2 * farthest)


def scaled_cosine(vectors: Vectors) -> PairwiseSimilarity:
    """(1 + cosine) / 2: 1 for the same direction, 0 for opposite ones.

    1/2 for a vector that is zero, or whose square underflows.
    """
    squares_N = squared_norms(vectors).float()
    return PairwiseSimilarity(vectors, squares_N, _scaled_cosines, 0.0, 1.0)


def weighing(similarity: PairwiseSimilarity, weights_N: Tensor) -> PairwiseSimilarity:
    """The same similarities, counted as much as the weight of who represents.

    Args:
        similarity: none below 0, so that a larger weight is never worse.
        weights_N: not negative.
    """
    return replace(
        similarity,
        weights_N=weights_N.float(),
        lowest=similarity.lowest * float(weights_N.min()),
        highest=similarity.highest * float(weights_N.max()),
    )


def _minus_distances(products_nm: Tensor, squares_n: Tensor, squares_m: Tensor) -> Tensor:
    sums_nm = squares_n[:, None] + squares_m
    products_nm.mul_(-2).add_(sums_nm)
    # Below the resolution, relative to both norms, is 0; so is what rounding made negative.
    unresolved_nm = products_nm <= sums_nm.mul_(RESOLUTION)
    return products_nm.masked_fill_(unresolved_nm, 0.0).sqrt_().neg_()


def _scaled_cosines(products_nm: Tensor, squares_n: Tensor, squares_m: Tensor) -> Tensor:
    # Their product first: one after the other would round i, j differently from j, i.
    products_nm.mul_(_inverse_roots(squares_n)[:, None] * _inverse_roots(squares_m))
    products_nm.masked_fill_(products_nm >= 1 - RESOLUTION, 1.0).clamp_(min=-1.0)
    return products_nm.add_(1).mul_(0.5)


def _inverse_roots(squares_n: Tensor) -> Tensor:
    """1 / sqrt, and 0 for what is too small for products of two of these to be finite."""
    tiny = torch.finfo(squares_n.dtype).tiny
    return squares_n.rsqrt().masked_fill(squares_n < tiny, 0.0)
