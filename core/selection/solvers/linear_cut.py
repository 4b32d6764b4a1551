"""Linear cut: greedy maximization of a cut whose similarities are inner products.

    F(S) = sum_{i in S} own_i + scale * sum_{i in S, j not in S} z_i . m(z_j)

m is the identity, or another symmetric map that keeps lengths. The gain of adding e is

    own_e + scale * (z_e . m(sum_all z - 2 sum_S z) - z_e . m(z_e)).

Picks come from a pool of the largest gains, rebuilt when a gain outside may exceed its best. With u
the sum of the picks' mapped rows and c the direction of the mean mapped row, the gains outside are
bounded by z_e . u >= (z_e . c)(u . c) - |z_e across c| |u across c|.

Unit rows are rounded to multiples of 2**-bits, so float64 sums of their products are exact: the
picks equal plain greedy's and do not depend on blocks, threads, device or data order. The error of
a cosine is about 2**-bits: 2e-6 for 2,000 rows, 8e-6 for 20,000.

Shapes: N rows, P coordinates or D features of a row, M examples in the pool, O outside, B of a
block, G clusters.
Source: Dhillon & Modha 2001 (spherical k-means); Arthur & Vassilvitskii 2007, "k-means++".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.signals.blocks import row_blocks

# A coordinate and its sign fit into float32.
_MOST_BITS = 22
_EXACT_BITS = 53
_MOST_ROUNDS = 50
POOL_SIZE = 256
# Above rounding errors: relative to a gain, and in a squared length before its root.
_GAIN_SLACK = 1e-9
_SQUARE_SLACK = 1e-12

Map = Callable[[Tensor], Tensor]


def exact_bits(num_rows: int) -> int:
    """The finest grid on which gains, below 4 (num_rows + 1), are exact sums."""
    sum_bits = 3 + (num_rows + 1).bit_length()
    return min(_MOST_BITS, (_EXACT_BITS - sum_bits) // 2)


def unit_rows(rows_ND: Tensor, bits: int) -> Tensor:
    """Rows scaled to length 1 and rounded to multiples of 2**-bits, float32; zeros stay zeros."""
    unit_ND = torch.empty(rows_ND.shape, device=rows_ND.device)
    for rows in row_blocks(len(rows_ND), rows_ND.shape[1] * 16):
        block_BD = rows_ND[rows].double()
        lengths_B = torch.linalg.vector_norm(block_BD, dim=-1, keepdim=True)
        block_BD /= lengths_B.masked_fill_(lengths_B == 0, 1)
        unit_ND[rows] = block_BD.mul_(2.0**bits).round_().mul_(2.0**-bits).float()
    return unit_ND


def cut_picks(
    rows_NP: Tensor,
    own_N: Tensor,
    *,
    scale: float,
    map_rows: Map = lambda rows_BP: rows_BP,
    pool_size: int = POOL_SIZE,
) -> Iterator[tuple[float, int]]:
    """Yield all examples in greedy order, each with its gain, which may be negative.

    z is from `unit_rows` with at most `exact_bits(N)` bits, own_N float64, scale positive. m maps
    one or several float64 rows.
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
    """Bounds on the decrease of gains, from each row's components along c and across it."""

    common_P: Tensor
    along_N: Tensor
    across_N: Tensor

    def of(self, positions_O: Tensor) -> _Falls:
        return _Falls(self.common_P, self.along_N[positions_O], self.across_N[positions_O])

    def at_least(self, mapped_sum_P: Tensor) -> Tensor:
        """A lower bound of z_e . u for every example e, given u; N."""
        along = mapped_sum_P @ self.common_P
        square = mapped_sum_P @ mapped_sum_P
        across = _root(square - along * along, square)
        return self.along_N * along - self.across_N * across


def _within_reach(best: float, gains_O: Tensor, falls_O: Tensor) -> bool:
    if not len(gains_O):
        return False
    highest = float((gains_O - falls_O).max())
    return best <= highest + _GAIN_SLACK * (abs(best) + float(falls_O.abs().max()))


def _root(square: Tensor, scale: Tensor) -> Tensor:
    """The root of a difference of squares, rounded up."""
    return (square.clamp(min=0) + _SQUARE_SLACK * scale).sqrt()


def _first_pass(rows_NP: Tensor, map_rows: Map, blocks: list[slice]) -> tuple[Tensor, _Falls]:
    """The cut of each example alone, N float64, and the bounds on its decrease."""
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


def spherical_kmeans(rows_ND: Tensor, num_clusters: int, *, generator: torch.Generator) -> Tensor:
    """The cluster of every row; N, int64. Clusters may end empty."""
    bits = exact_bits(len(rows_ND))
    unit_ND = unit_rows(rows_ND, bits)
    centres_GD = _far_rows(unit_ND, num_clusters, generator)
    clusters_N = _nearest(unit_ND, centres_GD)
    for _ in range(_MOST_ROUNDS):
        sums_GD = torch.zeros_like(centres_GD)
        for rows in row_blocks(len(unit_ND), unit_ND.shape[1] * 8):
            sums_GD.index_add_(0, clusters_N[rows], unit_ND[rows].double())
        # A cluster without rows, or with rows that cancel out, keeps its centre.
        moved_G1 = sums_GD.any(dim=-1, keepdim=True)
        centres_GD = torch.where(moved_G1, unit_rows(sums_GD, bits).double(), centres_GD)
        previous_N, clusters_N = clusters_N, _nearest(unit_ND, centres_GD)
        if torch.equal(previous_N, clusters_N):
            break
    return clusters_N


def _far_rows(unit_ND: Tensor, num_rows: int, generator: torch.Generator) -> Tensor:
    """k-means++: rows drawn by 1 - cosine with the nearest centre so far; float64."""
    distances_N = torch.ones(len(unit_ND), dtype=torch.float64)
    centres = []
    for _ in range(min(num_rows, len(unit_ND))):
        ends_N = distances_N.cumsum(dim=0)
        if not ends_N[-1] > 0:
            break
        share = torch.rand((), generator=generator, dtype=torch.float64)
        position = int(torch.searchsorted(ends_N, share * ends_N[-1], right=True))
        centre_D = unit_ND[min(position, len(unit_ND) - 1)].double()
        centres.append(centre_D)
        blocks = row_blocks(len(unit_ND), unit_ND.shape[1] * 8)
        cosines_N = torch.cat([unit_ND[rows].double() @ centre_D for rows in blocks]).cpu()
        # On the grid, the cosine of equal rows is slightly below 1.
        rounding = float(1 - (centre_D @ centre_D).cpu())
        distances_N = torch.minimum(distances_N, (1 - rounding - cosines_N).clamp_(min=0))
    return torch.stack(centres)


def _nearest(unit_ND: Tensor, centres_GD: Tensor) -> Tensor:
    num_centres, width = centres_GD.shape
    places_G = torch.arange(num_centres, device=unit_ND.device)
    nearest = []
    for rows in row_blocks(len(unit_ND), 8 * (width + 3 * num_centres)):
        cosines_BG = unit_ND[rows].double() @ centres_GD.T
        # Ties go to the first cluster; argmax does not guarantee that.
        best_BG = cosines_BG == cosines_BG.amax(dim=-1, keepdim=True)
        nearest.append(torch.where(best_BG, places_G, num_centres).amin(dim=-1))
    return torch.cat(nearest)
