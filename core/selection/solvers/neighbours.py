"""Neighbours: the examples with the nearest features to each.

Up to `MOST_EXACT` examples all pairs are compared, block by block. That takes N^2 D:
at 1,280,000 of them 164 times as long as at 100,000. Beyond it lists of what is near each other
are searched, and nearly all neighbours found: see `approximate_neighbours`.

Shapes: N examples, D features, R rows of a block, M columns of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.rows import Rows
from lipt.core.selection.gradients.vectors import Vectors
from lipt.core.selection.solvers.approximate_neighbours import approximate_neighbours
from lipt.core.selection.solvers.smallest import nearest

# auto: exact where that ends.
SearchName = Literal["auto", "exact", "approximate"]

MOST_EXACT = 100_000
# A block's distances are gone through several times: they should stay in the cache.
_BLOCK_BYTES = 8 * 1024**2
# Relative to a squared length of 1: what rounding may leave of the distance of equal features.
_RESOLUTION = 1e-12


def is_approximate(search: SearchName, num_examples: int) -> bool:
    """Whether neighbours among so many are looked for in lists."""
    return search == "approximate" or (search == "auto" and num_examples > MOST_EXACT)


def nearest_neighbours(
    features_ND: Tensor, count: int, *, normalized: bool = True, search: SearchName = "auto"
) -> Tensor:
    """The examples with the nearest features to each, not itself, nearest first; N x count.

    Args:
        features_ND: any floating type, finite.
        count: in 1..N-1. At equal distances the lowest ids come first.
        normalized: compare features scaled to length 1, but for zeros.
        search: exact, approximate, or by how many there are.

    Raises:
        MissingExtraError: approximate, and faiss is not installed.
    """
    if is_approximate(search, len(features_ND)):
        blocks = approximate_neighbours(features_ND, count, normalized=normalized)
        return torch.cat([neighbours_RM for _, neighbours_RM in blocks])
    vectors = Rows(Vectors(features_ND))
    distances_of = _between_directions(vectors) if normalized else vectors.squared_distances
    parts = []
    for rows in row_blocks(len(vectors), 16 * len(vectors), _BLOCK_BYTES):
        ids_R = torch.arange(rows.start, rows.stop, device=vectors.squares_N.device)
        distances_RN = distances_of(ids_R)
        distances_RN[ids_R - rows.start, ids_R] = torch.inf
        parts.append(nearest(distances_RN, count))
    return torch.cat(parts)


def _between_directions(vectors: Rows) -> Callable[[Tensor], Tensor]:
    """Squared distances of vectors scaled to length 1, but for zeros; 0 from equal ones."""
    norms_N = vectors.squares_N.sqrt()
    inverses_N = norms_N.reciprocal().masked_fill(norms_N == 0, 0.0)
    lengths_N = (norms_N > 0).double()

    def distances_of(ids_R: Tensor) -> Tensor:
        distances_RN = vectors.products(ids_R)
        distances_RN *= -2 * inverses_N[ids_R, None]
        distances_RN *= inverses_N
        distances_RN += lengths_N
        distances_RN += lengths_N[ids_R, None] * (1 - _RESOLUTION)
        return distances_RN.clamp_(min=0.0)

    return distances_of
