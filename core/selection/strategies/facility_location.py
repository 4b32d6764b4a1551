"""Facility location, plain and weighed by density (SubZeroCore).

Shapes: N examples, B rows of a block, C classes, D features, K budget.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.pairs import proximity, scaled_cosine, weighing
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.solvers.representatives import Partitions, choose_representatives
from lipt.core.selection.strategy import FEATURES, built_in, needs_of_space
from lipt.core.selection.vectors import Rows, ScaledCosine, Space, Vectors, in_space
from lipt.core.signals.signals import Signals

# Below what float32 features can say of radii.
_NO_SPREAD = 1e-7


@built_in(
    summary="one example like each of all others, by gradient or feature",
    paper='Wei et al. 2015, "Submodularity in Data Subset Selection and Active Learning" (ICML)',
    cost="N^2 (C + d)",
    needs=needs_of_space,
    revision=1,
)
def facility_location(
    signals: Signals,
    budget: int,
    *,
    seed: int,
    space: Space = "gradients",
    similarity: Annotated[
        Literal["cosine", "euclidean"],
        "(1 + cosine) / 2, or the largest distance minus the distance",
    ] = "cosine",
    partitions: Partitions = 0,
) -> Selection:
    """Keep the examples that together are similar to every other one, greedily.

    Maximizes the sum over all i of max over chosen j of s_ij. A random subset already has 0.99 of
    the greedy value: compare values above that.
    """
    vectors = in_space(signals, space)
    chosen_K, _ = choose_representatives(
        scaled_cosine(vectors) if similarity == "cosine" else proximity(vectors),
        budget,
        partitions=partitions,
        seed=seed,
    )
    return unweighted(chosen_K)


@built_in(
    summary="one example like each of all others, weighed by how usual its density is",
    paper=(
        'Moser et al. 2025, "SubZeroCore: A Submodular Approach with Zero Training for Coreset '
        'Selection" (arXiv:2509.21748)'
    ),
    cost="N^2 d",
    needs=FEATURES,
    # Before 2, neighbours among more than 100,000 examples were searched approximately.
    revision=2,
)
def subzerocore(
    signals: Signals,
    budget: int,
    *,
    seed: int,
    coverage: Annotated[
        float, Field(gt=0, lt=1), "share that a random subset would cover; sets the neighbours"
    ] = 0.6,
    partitions: Partitions = 0,
) -> Selection:
    """Keep the examples that represent all by density and similarity, greedily.

    Maximizes the sum over all i of max over chosen j of w_j s_ij, s = (1 + cosine) / 2. With r_j
    the distance to the n-th nearest neighbour, w_j = exp(-(r_j - mu)^2 / (2 sigma^2)), mu and sigma
    the mean and the deviation of all radii: outliers and crowded examples weigh little. n is the
    smallest number for which a random subset would cover a share `coverage` of the rest, that is
    choose one of their n nearest neighbours: 1 - (N-1-n choose K) / (N-1 choose K) >= coverage.

    Compared with a summary of the paper and another's implementation, not with its authors' code.
    There s is the cosine, by which the sum is monotone only if no two features are opposite.
    """
    vectors = Vectors(signals.features_ND)
    count = num_neighbours(len(signals), budget, coverage)
    radii_N = neighbour_radii(vectors, count)
    chosen_K, _ = choose_representatives(
        weighing(scaled_cosine(vectors), density_weights(radii_N)),
        budget,
        partitions=partitions,
        seed=seed,
    )
    return unweighted(chosen_K)


def num_neighbours(num_examples: int, budget: int, coverage: float) -> int:
    """n, by which random subsets have that coverage; 0 for one example."""
    uncovered = 1.0
    for count in range(1, num_examples):
        # Neither this one nor a nearer one is chosen.
        uncovered *= max(0, num_examples - budget - count) / (num_examples - count)
        if 1 - uncovered >= coverage:
            return count
    return num_examples - 1


def neighbour_radii(vectors: Vectors, count: int) -> Tensor:
    """1 - similarity of each example's `count`-th most similar other one; N float32.

    Computed in float64 and rounded, so that equal examples have equal radii.
    """
    radii_N = torch.zeros(len(vectors), device=vectors.device)
    if count == 0:
        return radii_N
    similarity = ScaledCosine(Rows(vectors))
    for rows in row_blocks(len(vectors), 32 * len(vectors)):
        ids_B = torch.arange(rows.start, rows.stop, device=vectors.device)
        distances_BN = 1 - similarity.rows(ids_B)
        # Not its own neighbour.
        distances_BN[torch.arange(len(ids_B), device=vectors.device), ids_B] = torch.inf
        radii_N[rows] = distances_BN.kthvalue(count, dim=1).values.float()
    return radii_N


def density_weights(radii_N: Tensor) -> Tensor:
    """How usual each radius is, in [0, 1]; N float32."""
    deviations_N = radii_N.double() - radii_N.double().mean()
    variance = deviations_N.square().mean()
    if float(variance.sqrt()) <= _NO_SPREAD:
        return torch.ones_like(radii_N)
    return (-deviations_N.square() / (2 * variance)).exp().float()
