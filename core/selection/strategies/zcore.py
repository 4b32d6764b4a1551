"""ZCore: examples that cover the feature space, without redundant neighbours.

Points are drawn in planes of two random features, from the triangular distribution of each
feature's minimum, median and maximum. The example nearest to a point covers it and gains 1. Its
neighbours in the plane (1,000 in the paper) are redundant and share -1, each by 1 / distance^4 from
it, distances being sums of absolute differences. Scores start at a random number below 1. They use
all examples together, balanced or not. 20 points an example are drawn, a million at most, as the
paper does for CIFAR. All duplicates of the covering example share its -1 (the authors': one alone).

Shapes: N examples, D features, M draws, B of a block, K budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.passes import row_blocks
from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategy import Cost, Growth, built_in
from lipt.core.selection.vectors import can_compile
from lipt.core.signals.views import Features, View

_DRAWS_PER_EXAMPLE = 20
_MOST_DRAWS = 1_000_000


@dataclass(frozen=True)
class CoverageScores(View):
    """Each example's gains minus its penalties, float32."""

    scores_N: Tensor


def score_coverage(
    features: Features,
    *,
    num_draws: Annotated[
        int, Field(ge=0, le=_MOST_DRAWS), "points drawn; 0: 20 for every example, at most a million"
    ] = 0,
    num_neighbours: Annotated[
        int, Field(ge=1), "examples that share the penalty of being near to one that covers"
    ] = 1000,
    seed: int,
) -> CoverageScores:
    """Score all examples; a single feature is both axes of the plane."""
    generator = derive_generator(seed, "zcore")
    features_ND = features.features_ND
    columns_DN = torch.empty(*features_ND.T.shape, device=features_ND.device)
    for rows in row_blocks(len(features), 4 * len(columns_DN)):
        columns_DN[:, rows] = features_ND[rows].T
    num_draws = num_draws or min(_MOST_DRAWS, _DRAWS_PER_EXAMPLE * len(features))
    scores_N = torch.rand(len(features), generator=generator, dtype=torch.float64)
    scores_N = scores_N.to(columns_DN.device)
    features_M2, points_M2 = draw_points(feature_corners(columns_DN), num_draws, generator)
    scores_N += plane_scores(columns_DN, features_M2, points_M2, num_neighbours)
    return CoverageScores(scores_N.float())


@built_in(
    summary="covers random points of the feature space",
    paper='Griffin et al. 2026, "Zero-Shot Coreset Selection" (arXiv:2411.15349)',
    cost=Cost(Growth.ITERATIONS, "N (d + m), m draws"),
    prepare=score_coverage,
)
def zcore(coverage: CoverageScores, budget: int) -> Selection:
    """Keep the `budget` examples with the largest scores, largest first."""
    return keep_largest(coverage.scores_N, budget)


def feature_corners(columns_DN: Tensor) -> Tensor:
    """Each feature's minimum, median and maximum; D x 3 float64, on the CPU."""
    num_features, num_examples = columns_DN.shape
    corners_D3 = torch.empty(num_features, 3, dtype=torch.float64)
    for rows in row_blocks(num_features, 16 * num_examples):
        block_BN = columns_DN[rows].double()
        # The median of an even number is between the middle two.
        lower_B = block_BN.kthvalue((num_examples + 1) // 2, dim=1).values
        upper_B = block_BN.kthvalue(num_examples // 2 + 1, dim=1).values
        low_B, high_B = block_BN.aminmax(dim=1)
        corners_D3[rows] = torch.stack([low_B, (lower_B + upper_B) / 2, high_B], dim=1).cpu()
    return corners_D3


def draw_points(
    corners_D3: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Features, M x 2 int64, and points in their planes, M x 2 float32."""
    num_features = len(corners_D3)
    first_M = torch.randint(num_features, (count,), generator=generator)
    ahead_M = torch.randint(1, max(2, num_features), (count,), generator=generator)
    features_M2 = torch.stack([first_M, (first_M + ahead_M) % num_features], dim=1)
    low_M2, middle_M2, high_M2 = corners_D3[features_M2].unbind(dim=-1)
    shares_M2 = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    # The inverse of the triangular distribution's function, a parabola on either side.
    rising_M2 = low_M2 + (shares_M2 * (high_M2 - low_M2) * (middle_M2 - low_M2)).sqrt()
    falling_M2 = high_M2 - ((1 - shares_M2) * (high_M2 - low_M2) * (high_M2 - middle_M2)).sqrt()
    rises_M2 = shares_M2 * (high_M2 - low_M2) < middle_M2 - low_M2
    return features_M2, rising_M2.where(rises_M2, falling_M2).float()


def plane_scores(
    columns_DN: Tensor, features_M2: Tensor, points_M2: Tensor, num_neighbours: int
) -> Tensor:
    """Sums of each example's gains and penalties, nearest ties to the lowest id; N float64."""
    num_neighbours = min(num_neighbours, columns_DN.shape[1] - 1)
    if not can_compile(columns_DN.device):
        return plane_scores_torch(columns_DN, features_M2, points_M2, num_neighbours)
    from lipt.core.selection.compiled_loops import plane_scores_compiled  # noqa: PLC0415 - numba

    scores_N = torch.zeros(columns_DN.shape[1], dtype=torch.float64)
    plane_scores_compiled(
        columns_DN.numpy(), features_M2.numpy(), points_M2.numpy(), num_neighbours, scores_N.numpy()
    )
    return scores_N


def plane_scores_torch(
    columns_DN: Tensor, features_M2: Tensor, points_M2: Tensor, num_neighbours: int
) -> Tensor:
    """`plane_scores` without compiled code, on any device."""
    num_examples, device = columns_DN.shape[1], columns_DN.device
    scores_N = torch.zeros(num_examples, dtype=torch.float64, device=device)
    ids_N = torch.arange(num_examples, device=device)
    for rows in row_blocks(len(features_M2), 64 * num_examples):
        first_BN, second_BN = columns_DN[features_M2[rows].T.to(device)]
        x_B, y_B = points_M2[rows].T.to(device)
        distances_BN = _distances(first_BN, second_BN, x_B, y_B)
        nearest_B1 = distances_BN.amin(dim=1, keepdim=True)
        # The first of equals; argmin does not guarantee that.
        covering_B1 = ids_N.where(distances_BN == nearest_B1, num_examples).amin(dim=1)[:, None]
        scores_N += covering_B1[:, 0].bincount(minlength=num_examples)
        if num_neighbours == 0:
            continue
        x_B, y_B = (values.gather(1, covering_B1)[:, 0] for values in (first_BN, second_BN))
        distances_BN = _distances(first_BN, second_BN, x_B, y_B)
        distances_BN.scatter_(1, covering_B1, torch.inf)
        farthest_B1 = distances_BN.kthvalue(num_neighbours, dim=1, keepdim=True).values
        least_B1 = distances_BN.amin(dim=1, keepdim=True).double()
        # Relative to the nearest one nothing overflows; 0 / 0 means equal positions.
        shares_BN = (least_B1 / distances_BN).nan_to_num_(nan=1.0).square_().square_()
        shares_BN.masked_fill_(distances_BN > farthest_B1, 0.0)
        scores_N -= (shares_BN / shares_BN.sum(dim=1, keepdim=True)).sum(dim=0)
    return scores_N


def _distances(first_BN: Tensor, second_BN: Tensor, x_B: Tensor, y_B: Tensor) -> Tensor:
    return (first_BN - x_B[:, None]).abs_().add_((second_BN - y_B[:, None]).abs_())
