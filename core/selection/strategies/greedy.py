"""K-center, graph cut, log-determinant, herding and MILO: examples chosen one by one.

MILO's easy subsets come from stochastic greedy ("Lazier Than Lazy Greedy", Mirzasoleiman et al.
2015, arXiv:1409.7938) on the graph cut
    sum_{i in V, j in S} s_ij - 0.4 sum_{i, j in S} s_ij,    s = (1 + cosine) / 2.
Its diverse ones are random draws by the Taylor-softmax 1 + g + g^2 / 2, g the distance 1 - cosine
of an example from those before it (farthest first), relative to the farthest pair.

Shapes: N examples, B rows computed together or of a sample, D features, K budget, T columns so far.
Source: besides those below, Gonzalez 1985 (farthest first); Chen, Welling and Smola 2010
(arXiv:1203.3472), here without replacement.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.passes import row_blocks
from lipt.core.selection.selection import Selection, draw_by_weight, unweighted
from lipt.core.selection.solvers.linear_cut import best_first, exact_bits, unit_rows
from lipt.core.selection.strategy import Cost, Growth, built_in, view_of_space
from lipt.core.selection.vectors import CosineKernel, ProductRows, Space, Vectors, vectors_of
from lipt.core.signals.views import Features, LastLayer

# A batch lasts some ten picks: their columns change which examples are most promising.
_LOG_DET_ROWS_AHEAD = 32
# Share of the squared norms, added before comparisons. It makes the float32 grid coarser than
# float64 rounding: equal examples tie, whatever their last bits.
_OFFSET = 1e-6
# Twice float32's spacing: nearer values may tie.
_GRID = 2.0**-22


@built_in(
    summary="repeatedly the example farthest from all chosen ones",
    paper='Sener and Savarese 2018, "A Core-Set Approach" (arXiv:1708.00489)',
    cost=Cost(Growth.ITERATIONS, "N k d"),
    needs=view_of_space,
)
def kcenter(view: LastLayer | Features, budget: int, *, space: Space = "features") -> Selection:
    """Keep `budget` examples that are near to all, each farthest from those before it.

    The largest distance to the nearest chosen one is at most twice the smallest possible. The first
    is the one nearest to the mean.
    """
    rows = ProductRows(vectors_of(view))
    return _chosen(rows.squares_N, [pick for pick, _, _ in farthest_first(rows, budget)])


def farthest_first(rows: ProductRows, budget: int) -> Iterator[tuple[int, float, Tensor]]:
    """Positions, squared distances from the nearest before (the first: 0), and from all others."""
    distances_N = -rows.squared_distances_from_mean()
    for number, (position, row_N) in enumerate(
        best_first(distances_N, budget, rows.squared_distances)
    ):
        yield position, float(distances_N[position]) if number else 0.0, row_N
        if number:
            torch.minimum(distances_N, row_N, out=distances_N)
        else:
            distances_N.copy_(row_N)


@built_in(
    summary="like all examples, but not like each other",
    paper='Iyer et al. 2021, "Submodular Information Measures" (arXiv:2006.15412)',
    cost=Cost(Growth.ITERATIONS, "N k (C + d)"),
    needs=view_of_space,
)
def graph_cut(
    view: LastLayer | Features,
    budget: int,
    *,
    space: Space = "gradients",
    coverage: Annotated[float, Field(ge=0), "weight of being like all; monotone from 2"] = 2.0,
) -> Selection:
    """Keep `budget` examples, each with the largest gain in the graph cut's value.

    With S the chosen of V examples, s = (1 + cosine) / 2 and lambda the coverage, the value is
    lambda sum_{i in V, j in S} s_ij - sum_{i, j in S} s_ij: representative by the first sum,
    diverse by the second. For lambda >= 2 greedy choice reaches at least 63% of the best value.
    """
    similarity = CosineKernel(ProductRows(vectors_of(view)))
    gains_N = similarity.column_sums().mul_(coverage).sub_(similarity.diagonal())
    picks = []
    for position, row_N in best_first(gains_N, budget, similarity.rows):
        picks.append(position)
        # s_ij and s_ji: both ends of the pair are now in the set.
        gains_N.sub_(row_N, alpha=2)
    return _chosen(gains_N, picks)


@built_in(
    summary="directions that span the largest volume",
    paper='Chen et al. 2018, "Fast Greedy MAP Inference" (arXiv:1709.05135)',
    cost=Cost(Growth.ITERATIONS, "N k (C + d + k)"),
    needs=view_of_space,
)
def log_det(
    view: LastLayer | Features,
    budget: int,
    *,
    space: Space = "gradients",
    ridge: Annotated[float, Field(ge=1e-6), "what an example counts beyond its direction"] = 1e-3,
) -> Selection:
    """Keep `budget` examples, each with the largest gain in log det(s_S + ridge I).

    Similarity is (1 + cosine) / 2. An example gains the log of its squared distance from the span
    of those before it: near-duplicates gain least. One column of a Cholesky factor per pick updates
    those distances, K x N float64.
    """
    similarity = CosineKernel(ProductRows(vectors_of(view)))
    # exp(gain): the squared distance from the span, plus the ridge.
    distances_N = similarity.diagonal() + ridge
    columns_KN = distances_N.new_empty(budget, len(distances_N))
    picks: list[int] = []
    num_taken_out = 0

    def residual_rows(positions_B: Tensor) -> Tensor:
        nonlocal num_taken_out
        num_taken_out = len(picks)
        columns_TN = columns_KN[:num_taken_out]
        return similarity.rows(positions_B).addmm_(
            columns_TN[:, positions_B].T, columns_TN, alpha=-1
        )

    best = best_first(distances_N, budget, residual_rows, rows_ahead=_LOG_DET_ROWS_AHEAD)
    for position, row_N in best:
        # Take out the few columns since.
        columns_TN = columns_KN[num_taken_out : len(picks)]
        column_N = row_N - columns_TN[:, position] @ columns_TN
        # Values below the ridge are rounding.
        column_N /= distances_N[position].clamp(min=ridge).sqrt()
        columns_KN[len(picks)] = column_N
        picks.append(position)
        distances_N.sub_(column_N.square_())
    return _chosen(distances_N, picks)


@built_in(
    summary="features whose mean is that of all",
    paper='Welling 2009, "Herding Dynamical Weights to Learn" (ICML)',
    cost=Cost(Growth.ITERATIONS, "N k d"),
)
def herding(features: Features, budget: int) -> Selection:
    """Keep examples whose mean approaches the mean of all, like 1 / i.

    Pick i is the x with the smallest |i mu - sum_S - x|. With drift the sum of mu - x over the
    chosen, its square is |x - mu|^2 - 2 (x - mu) . drift plus a common term. float32 leaves a few
    candidates; float64 decides.
    """
    features_ND = features.features_ND
    blocks = list(row_blocks(len(features_ND), 16 * features_ND.shape[1]))
    sums_BD = [features_ND[rows].double().sum(dim=0) for rows in blocks]
    mean_D = torch.stack(sums_BD).sum(dim=0) / len(features_ND)
    squares_N = torch.cat([features_ND[rows].double().square().sum(dim=-1) for rows in blocks])
    spread_N = squares_N - 2 * _products(features_ND, mean_D, blocks) + mean_D @ mean_D
    spread_N += spread_N.mean() + _OFFSET * squares_N.mean()
    # Twice the rounding of a float32 product with a vector of length 1, itself rounded.
    rounding_N = squares_N.sqrt() * (2.0**-23 * (features_ND.shape[1] + 2))
    drift_D = torch.zeros_like(mean_D)
    picks: list[int] = []
    for _ in range(budget):
        shared = mean_D @ drift_D
        rough_N = spread_N - 2 * (_products(features_ND, drift_D.float(), blocks) - shared)
        slack_N = rounding_N * drift_D.norm() + _GRID * rough_N.abs()
        near = torch.nonzero(rough_N - slack_N <= (rough_N + slack_N).min()).flatten()
        away = spread_N[near] - 2 * (features_ND[near].double() @ drift_D - shared)
        position = int(near[away.float().argmin()])
        picks.append(position)
        # A chosen example is never near again.
        spread_N[position] = torch.inf
        drift_D += mean_D - features_ND[position]
    return _chosen(features_ND, picks)


def _chosen(like: Tensor, picks: list[int]) -> Selection:
    return unweighted(torch.tensor(picks, device=like.device))


def _products(features_ND: Tensor, vector_D: Tensor, blocks: Sequence[slice]) -> Tensor:
    return torch.cat([features_ND[rows].to(vector_D.dtype) @ vector_D for rows in blocks])


REPULSION = 0.4
_EPSILON = 0.1


@built_in(
    summary="random subsets: typical examples first, then diverse ones",
    paper='Killamsetty et al. 2023, "MILO" (arXiv:2301.13287)',
    cost=Cost(Growth.PAIRS, "N d; diverse: N^2 d"),
    is_random=True,
)
def milo(
    features: Features,
    budget: int,
    *,
    stage: Annotated[
        Literal["easy", "diverse"], "of the curriculum: a sixth of the epochs, then the rest"
    ] = "easy",
    draw: Annotated[int, Field(ge=0), "which of the stage's random subsets"] = 0,
    seed: int,
) -> Selection:
    """Draw one subset of a stage."""
    generator = derive_generator(seed, f"milo-{stage}", draw)
    rows_ND = unit_rows(features.features_ND, exact_bits(len(features)))
    if stage == "easy":
        return unweighted(_typical(rows_ND, budget, generator))
    gains_N = disparity_gains(rows_ND)
    weights_N = 1 + gains_N + gains_N.square() / 2
    return draw_by_weight(weights_N.log(), budget, generator=generator)


def _typical(rows_ND: Tensor, budget: int, generator: torch.Generator) -> Tensor:
    """Stochastic greedy on the graph cut; K int64 on the CPU."""
    blocks = list(row_blocks(len(rows_ND), 16 * rows_ND.shape[1]))
    total_D = torch.stack([rows_ND[rows].double().sum(dim=0) for rows in blocks]).sum(dim=0)
    picked_D = torch.zeros_like(total_D)
    likeness_N = torch.cat([rows_ND[rows].double() @ total_D for rows in blocks])
    squares_N = torch.cat([rows_ND[rows].double().square().sum(dim=-1) for rows in blocks])
    own_N = likeness_N - REPULSION * squares_N
    left = list(range(len(rows_ND)))
    size = math.ceil(len(left) / budget * math.log(1 / _EPSILON))
    picks = []
    for _ in range(budget):
        sample = draw_sample(left, size, generator)
        ids_B = torch.tensor([candidate for candidate, _ in sample])
        gains_B = own_N[ids_B] - 2 * REPULSION * (rows_ND[ids_B].double() @ picked_D)
        candidate, place = sample[int(gains_B.argmax())]
        picked_D += rows_ND[candidate]
        picks.append(candidate)
        left[place] = left[-1]
        left.pop()
    return torch.tensor(picks)


def draw_sample(left: list[int], size: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """A random sample of candidates, moved to the front, each with its position; ascending."""
    count = min(size, len(left))
    # The first steps of a shuffle.
    for step, draw in enumerate(torch.rand(count, generator=generator).tolist()):
        other = step + min(int(draw * (len(left) - step)), len(left) - step - 1)
        left[step], left[other] = left[other], left[step]
    return sorted((candidate, place) for place, candidate in enumerate(left[:count]))


def disparity_gains(rows_ND: Tensor) -> Tensor:
    """Distance of each unit row from those before it, in [0, 1]; N float64."""
    rows = ProductRows(Vectors(rows_ND))
    gains_N = torch.zeros_like(rows.squares_N)
    farthest = torch.zeros_like(gains_N[:1])
    for position, distance, row_N in farthest_first(rows, len(rows)):
        gains_N[position] = distance
        farthest = torch.maximum(farthest, row_N.max())
    # If all directions are equal, all gains are 0.
    return torch.where(farthest > 0, gains_N / farthest, 0.0)
