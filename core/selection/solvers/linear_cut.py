"""Greedy choice by kernel rows: best first, and linear cuts; and spherical k-means.

A linear cut is a set function whose similarities are inner products of rows z:

    F(S) = sum_{i in S} own_i + scale * sum_{i in S, j not in S} z_i . m(z_j)

m is the identity, or another symmetric map that keeps lengths. The gain of adding e is

    own_e + scale * (z_e . m(sum_all z - 2 sum_S z) - z_e . m(z_e)).

Unit rows are rounded to multiples of 2**-bits, so float64 sums of their products are exact: the
picks do not depend on blocks, threads, device or data order. The error of a cosine is about
2**-bits: 2e-6 for 2,000 rows, 8e-6 for 20,000.

Shapes: N rows, P coordinates or D features of a row, B of a block, G clusters, K budget.
Source: Dhillon & Modha 2001 (spherical k-means); Arthur & Vassilvitskii 2007, "k-means++".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lipt.core.passes import BLOCK_BYTES, row_blocks

# A coordinate and its sign fit into float32.
_MOST_BITS = 22
_EXACT_BITS = 53
_MOST_ROUNDS = 50


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


def best_first(
    gains_N: Tensor,
    budget: int,
    rows_of: Callable[[Tensor], Tensor],
    *,
    rows_ahead: int = 64,
    dtype: torch.dtype = torch.float32,
) -> Iterator[tuple[int, Tensor]]:
    """Yield `budget` times the largest gain's position and row of the kernel.

    The caller updates the float64 gains in place in between. They are compared in `dtype`; ties go
    to the lowest position. Rows of the most promising examples are computed together.
    """
    rows_ahead = max(1, min(rows_ahead, BLOCK_BYTES // (8 * len(gains_N))))
    slots: dict[int, int] = {}
    rows_BN = gains_N.new_empty(0, len(gains_N))
    for num_left in range(budget, 0, -1):
        position = int(gains_N.to(dtype).argmax())
        if position not in slots:
            best_B = gains_N.topk(min(rows_ahead, num_left)).indices
            others_B = best_B[best_B != position][: min(rows_ahead, num_left) - 1]
            positions_B = torch.cat([others_B.new_tensor([position]), others_B])
            rows_BN = rows_of(positions_B)
            slots = {row_position: slot for slot, row_position in enumerate(positions_B.tolist())}
        yield position, rows_BN[slots[position]]
        gains_N[position] = -torch.inf


def cut_picks(
    rows_NP: Tensor,
    own_N: Tensor,
    budget: int,
    *,
    scale: float,
    map_rows: Callable[[Tensor], Tensor] = lambda rows_BP: rows_BP,
) -> Iterator[tuple[float, int]]:
    """Yield examples in greedy order, each with its gain, which may be negative.

    z is from `unit_rows` with at most `exact_bits(N)` bits, own_N float64, scale positive. m maps
    one or several float64 rows.
    """
    blocks = list(row_blocks(len(rows_NP), rows_NP.shape[1] * 8))

    def products(rows_BP: Tensor) -> Tensor:
        mapped_BP = map_rows(rows_BP)
        return torch.cat([mapped_BP @ rows_NP[rows].double().T for rows in blocks], dim=-1)

    sums_BP = [rows_NP[rows].double().sum(dim=0) for rows in blocks]
    cut_N = products(torch.stack(sums_BP).sum(dim=0))
    for rows in blocks:
        block_BP = rows_NP[rows].double()
        cut_N[rows] -= (block_BP * map_rows(block_BP)).sum(dim=-1)
    own_N = own_N.clone()
    gains_N = own_N + scale * cut_N
    for position, row_N in best_first(
        gains_N, budget, lambda ids_B: products(rows_NP[ids_B].double()), dtype=torch.float64
    ):
        yield float(gains_N[position]), position
        own_N[position] = -torch.inf
        # Not in place: only the cut is an exact sum.
        gains_N.copy_(own_N + scale * cut_N.sub_(row_N, alpha=2))


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
