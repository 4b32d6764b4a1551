"""Linear cut: greedy maximization of a cut whose similarities are inner products.

    F(S) = sum_{i in S} own_i + scale * sum_{i in S, j not in S} z_i . m(z_j)

m is the identity, or another symmetric map that keeps lengths. The gain of adding e,

    own_e + scale * (z_e . m(sum_all z - 2 sum_S z) - z_e . m(z_e)),

needs sums and no matrix of similarities: O(N P) for all examples, whatever S is.

Even that is too much to do for every pick, and needless: an example far below the best
does not overtake it for some time. Picks are made from a pool of the best gains, updated
alone, as long as nothing outside can have risen above the pool's best; then all gains are
updated. Picks whose mapped rows sum to u lower a gain by 2 scale z_e . u, and with c the
direction of the mean mapped row,

    z_e . u >= (z_e . c)(u . c) - |z_e across c| |u across c|,

where the second part grows slowly: what picks have in common is mostly c. So outside gains
are bounded from above without looking at their rows. The answer is plain greedy's, ties by
the lowest position, for a pass over all rows in about a hundred picks.

Rows are those of `unit_rows`, so all sums are exact and the answer does not depend on the
pool or the blocks.

Shapes: N examples, P coordinates of a row, M examples in the pool, O outside, B of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.signals.blocks import row_blocks

POOL_SIZE = 256
# Above what rounding can hide: in a gain relative to its size, and in a squared length
# before its root.
_GAIN_SLACK = 1e-9
_SQUARE_SLACK = 1e-12

Map = Callable[[Tensor], Tensor]


def cut_picks(
    rows_NP: Tensor,
    own_N: Tensor,
    *,
    scale: float,
    map_rows: Map = lambda rows_BP: rows_BP,
    pool_size: int = POOL_SIZE,
) -> Iterator[tuple[float, int]]:
    """Every example once, in the order of greedy choice, each with its gain at its turn.

    A pick is worked out when it is asked for, so stop whenever there are enough. Picks go
    on where gains are negative.

    Args:
        rows_NP: z, from `unit_rows` with `exact_bits(N)` at most.
        own_N: what each example is worth by itself, float64.
        scale: of the cut, positive.
        map_rows: m, of one row or several in float64.
        pool_size: how many gains are kept up to date from pick to pick.
    """
    blocks = list(row_blocks(len(rows_NP), rows_NP.shape[1] * 8))
    cut_N, falls = _first_pass(rows_NP, map_rows, blocks)
    left_N = torch.ones(len(rows_NP), dtype=torch.bool, device=rows_NP.device)
    while bool(left_N.any()):
        gains_N = (own_N + scale * cut_N).masked_fill_(~left_N, -torch.inf)
        order_N = gains_N.argsort(descending=True, stable=True)
        pool_M, outside_O = order_N[:pool_size].sort().values, order_N[pool_size:]
        pooled_MP, own_M, gains_M = rows_NP[pool_M].double(), own_N[pool_M], gains_N[pool_M]
        cut_M = cut_N[pool_M].masked_fill(~left_N[pool_M], -torch.inf)
        outside_gains_O, outside_falls = gains_N[outside_O], falls.of(outside_O)
        mapped_sum_P = torch.zeros_like(pooled_MP[0])
        best = float(gains_M.max())
        # The first pick is the best of all; each later one has to be above every doubt.
        while True:
            place = int(torch.nonzero(gains_M == best)[0])
            yield best, int(pool_M[place])
            mapped_P = map_rows(pooled_MP[place])
            mapped_sum_P += mapped_P
            cut_M -= 2 * (pooled_MP @ mapped_P)
            cut_M[place] = -torch.inf
            gains_M = own_M + scale * cut_M
            best = float(gains_M.max())
            falls_O = 2 * scale * outside_falls.at_least(mapped_sum_P)
            if best == -torch.inf or _within_reach(best, outside_gains_O, falls_O):
                break
        left_N[pool_M[cut_M == -torch.inf]] = False
        for rows in blocks:
            cut_N[rows] -= 2 * (rows_NP[rows].double() @ mapped_sum_P)


@dataclass(frozen=True)
class _Falls:
    """By how much gains fall, bounded from below: each row's parts along c and across it."""

    common_P: Tensor
    along_N: Tensor
    across_N: Tensor

    def of(self, positions_O: Tensor) -> _Falls:
        """The same for some of the examples."""
        return _Falls(self.common_P, self.along_N[positions_O], self.across_N[positions_O])

    def at_least(self, mapped_sum_P: Tensor) -> Tensor:
        """A bound of z_e . u from below, for every example e, given u; N."""
        along = mapped_sum_P @ self.common_P
        square = mapped_sum_P @ mapped_sum_P
        across = _root(square - along * along, square)
        return self.along_N * along - self.across_N * across


def _within_reach(best: float, gains_O: Tensor, falls_O: Tensor) -> bool:
    """Whether a gain outside the pool may have become as large as the pool's best."""
    if not len(gains_O):
        return False
    highest = float((gains_O - falls_O).max())
    return best <= highest + _GAIN_SLACK * (abs(best) + float(falls_O.abs().max()))


def _root(square: Tensor, scale: Tensor) -> Tensor:
    """The root of a difference of squares, rather too large than too small."""
    return (square.clamp(min=0) + _SQUARE_SLACK * scale).sqrt()


def _first_pass(rows_NP: Tensor, map_rows: Map, blocks: list[slice]) -> tuple[Tensor, _Falls]:
    """The cut of each example alone, N in float64, and what bounds its fall."""
    total_P = torch.zeros(rows_NP.shape[1], dtype=torch.float64, device=rows_NP.device)
    for rows in blocks:
        total_P += rows_NP[rows].double().sum(dim=0)
    common_P = functional.normalize(map_rows(total_P), dim=0)
    cut_N, along_N, across_N = torch.empty(
        3, len(rows_NP), dtype=torch.float64, device=rows_NP.device
    )
    for rows in blocks:
        block_BP = rows_NP[rows].double()
        cut_N[rows] = block_BP @ map_rows(total_P) - (block_BP * map_rows(block_BP)).sum(dim=-1)
        along_N[rows] = block_BP @ common_P
        squares_B = block_BP.square().sum(dim=-1)
        across_N[rows] = _root(squares_B - along_N[rows].square(), squares_B)
    return cut_N, _Falls(common_P, along_N, across_N)
