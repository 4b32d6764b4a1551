"""Unit rows: on a grid that is coarse enough for sums of their products to be exact.

A greedy choice among nearly equal gains depends on the last bits of its sums, and those
depend on block sizes, thread counts, the device and the order of the data. Rounding every
coordinate to a multiple of 2**-bits makes each product a multiple of 4**-bits, and float64
adds those without any rounding as long as the sum stays below 2**53 of them. So every
order gives the same sum, and rows that are equal have equal gains.

The price is an error of about 2**-bits in a cosine: 2e-6 for 2,000 rows, 8e-6 for 20,000.

Spherical k-means on such rows finds latent classes of data whose labels are not to be used:
clusters by cosine similarity, started from rows that are far from one another (k-means++). Every
sum is exact, so one seed gives one clustering, whatever the blocks, the threads or the device.

Shapes: N rows, D features, B of a block, G clusters.
Source: Dhillon & Modha 2001, "Concept Decompositions for Large Sparse Text Data Using
Clustering"; Arthur & Vassilvitskii 2007, "k-means++: The Advantages of Careful Seeding".
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks

# A coordinate and its sign have to fit into float32.
_MOST_BITS = 22
_EXACT_BITS = 53


def exact_bits(num_rows: int) -> int:
    """The finest grid on which sums of products over `num_rows` rows are exact.

    Products are at most 2 in size (of pairs of rows), and gains twice such a sum: the
    sums stay below 4 (num_rows + 1), with one bit to spare for rows rounded above 1.
    """
    sum_bits = 3 + (num_rows + 1).bit_length()
    return min(_MOST_BITS, (_EXACT_BITS - sum_bits) // 2)


def unit_rows(rows_ND: Tensor, bits: int) -> Tensor:
    """Each row divided by its length and rounded to multiples of 2**-bits; float32.

    A row of zeros stays one: it is similar to nothing.
    """
    unit_ND = torch.empty(rows_ND.shape, device=rows_ND.device)
    for rows in row_blocks(len(rows_ND), rows_ND.shape[1] * 16):
        block_BD = rows_ND[rows].double()
        lengths_B = torch.linalg.vector_norm(block_BD, dim=-1, keepdim=True)
        block_BD /= lengths_B.masked_fill_(lengths_B == 0, 1)
        unit_ND[rows] = block_BD.mul_(2.0**bits).round_().mul_(2.0**-bits).float()
    return unit_ND


_MOST_ROUNDS = 50


def spherical_kmeans(rows_ND: Tensor, num_clusters: int, *, generator: torch.Generator) -> Tensor:
    """The cluster of every row; N, int64, in 0..num_clusters - 1.

    Fewer clusters are made where there are fewer different directions; one may end empty.

    Args:
        rows_ND: features, any floating type.
        num_clusters: at most how many.
        generator: draws the rows that clusters start from; on the CPU.
    """
    bits = exact_bits(len(rows_ND))
    unit_ND = unit_rows(rows_ND, bits)
    centres_GD = _far_rows(unit_ND, num_clusters, generator)
    clusters_N = _nearest(unit_ND, centres_GD)
    for _ in range(_MOST_ROUNDS):
        sums_GD = torch.zeros_like(centres_GD)
        for rows in row_blocks(len(unit_ND), unit_ND.shape[1] * 8):
            sums_GD.index_add_(0, clusters_N[rows], unit_ND[rows].double())
        # A cluster without rows, or whose rows cancel out, stays where it is.
        moved_G1 = sums_GD.any(dim=-1, keepdim=True)
        centres_GD = torch.where(moved_G1, unit_rows(sums_GD, bits).double(), centres_GD)
        previous_N, clusters_N = clusters_N, _nearest(unit_ND, centres_GD)
        if torch.equal(previous_N, clusters_N):
            break
    return clusters_N


def _far_rows(unit_ND: Tensor, num_rows: int, generator: torch.Generator) -> Tensor:
    """Rows drawn one by one, each by its distance from the nearest one so far; float64.

    Half the squared Euclidean distance of unit rows is 1 - cosine.
    """
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
        cosines_N = _cosines(unit_ND, centre_D[None])[:, 0].cpu()
        # The grid leaves equal rows a cosine that is not quite 1.
        rounding = float(1 - (centre_D @ centre_D).cpu())
        distances_N = torch.minimum(distances_N, (1 - rounding - cosines_N).clamp_(min=0))
    return torch.stack(centres)


def _nearest(unit_ND: Tensor, centres_GD: Tensor) -> Tensor:
    num_centres, width = centres_GD.shape
    places_G = torch.arange(num_centres, device=unit_ND.device)
    nearest = []
    for rows in row_blocks(len(unit_ND), 8 * (width + 3 * num_centres)):
        cosines_BG = unit_ND[rows].double() @ centres_GD.T
        # Ties go to the first cluster, which argmax does not promise.
        best_BG = cosines_BG == cosines_BG.amax(dim=-1, keepdim=True)
        nearest.append(torch.where(best_BG, places_G, num_centres).amin(dim=-1))
    return torch.cat(nearest)


def _cosines(unit_ND: Tensor, centres_GD: Tensor) -> Tensor:
    return torch.cat(
        [
            unit_ND[rows].double() @ centres_GD.T
            for rows in row_blocks(len(unit_ND), unit_ND.shape[1] * 8)
        ]
    )
