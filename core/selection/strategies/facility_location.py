"""Facility location: plain, by gradients (CRAIG, AdaCore) and weighed by density (SubZeroCore).

Shapes: N examples, B of a block, C classes, D features, F with the bias's 1, K budget.
Source: besides those below, Shazeer and Stern 2018, "Adafactor" (arXiv:1804.04235).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lipt.core.passes import row_blocks
from lipt.core.selection.pairs import proximity, scaled_cosine, with_weights
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.solvers.representatives import (
    ComputedLevels,
    Partitions,
    StoredLevels,
    choose_representatives,
)
from lipt.core.selection.strategy import Cost, Growth, built_in, view_of_space
from lipt.core.selection.vectors import (
    CACHED_BYTES,
    Space,
    Vectors,
    gradients_of,
    other_distances,
    vectors_of,
    with_bias,
)
from lipt.core.signals.views import Features, LastLayer
from lipt.data.targets.kinds import TargetKind

# Below the precision of radii from float32 features.
_NO_SPREAD = 1e-7


@built_in(
    summary="one example like each of all others, by gradient or feature",
    paper='Wei et al. 2015, "Submodularity in Data Subset Selection and Active Learning" (ICML)',
    cost=Cost(Growth.PAIRS, "N^2 (C + d)"),
    needs=view_of_space,
    revision=1,
    is_random=True,
)
def facility_location(
    view: LastLayer | Features,
    budget: int,
    *,
    seed: int,
    space: Space = "gradients",
    partitions: Partitions = 0,
) -> Selection:
    """Keep the examples that together are similar to every other one, greedily.

    Maximizes the sum over all i of max over chosen j of s_ij, s = (1 + cosine) / 2. A random subset
    already has 0.99 of the greedy value: compare values above that.
    """
    chosen_K, _ = choose_representatives(
        scaled_cosine(vectors_of(view)), budget, partitions=partitions, seed=seed
    )
    return unweighted(chosen_K)


@built_in(
    summary="nearest to all gradients, weighted by how many are near",
    paper='Mirzasoleiman et al. 2020, "Coresets for Data-efficient Training" (arXiv:1906.01827)',
    cost=Cost(Growth.PAIRS, "N^2 (C + d)"),
    returns_weights=True,
    revision=1,
    is_random=True,
)
def craig(layer: LastLayer, budget: int, *, seed: int, partitions: Partitions = 0) -> Selection:
    """Keep the examples that are nearest to all others, by greedy facility location.

    Replacing each gradient by its nearest chosen one changes their sum by at most the sum of the
    distances. Minimizing that is facility location with similarity "largest distance minus
    distance". A chosen example weighs as much as its cluster: the weights sum to N.
    """
    chosen_K, levels = choose_representatives(
        proximity(gradients_of(layer)), budget, partitions=partitions, seed=seed
    )
    sizes_K = cluster_sizes(levels, chosen_K)
    return Selection(chosen_K, sizes_K.to(torch.float32))


def cluster_sizes(levels: StoredLevels | ComputedLevels, chosen_K: Tensor) -> Tensor:
    """Number of examples most similar to each chosen one, itself included; K int64."""
    ids_K, order_K = chosen_K.sort()
    best_N = torch.full((len(levels),), -1, dtype=torch.int32, device=chosen_K.device)
    owners_N = torch.zeros(len(levels), dtype=torch.int64, device=chosen_K.device)
    for rows in row_blocks(len(ids_K), 16 * len(levels)):
        highest_N, places_N = levels.rows(ids_K[rows]).max(dim=0)
        # An equal level of a higher id does not count.
        better_N = highest_N > best_N
        best_N[better_N] = highest_N[better_N].int()
        owners_N[better_N] = places_N[better_N] + rows.start
    owners_N[ids_K] = torch.arange(len(ids_K), device=chosen_K.device)
    sizes_K = torch.empty_like(chosen_K)
    sizes_K[order_K] = owners_N.bincount(minlength=len(ids_K))
    return sizes_K


def _relative(curvatures_n: Tensor) -> Tensor:
    # Distances are only compared: their common scale is omitted.
    mean = curvatures_n.mean()
    return curvatures_n / mean if mean > 0 else torch.ones_like(curvatures_n)


def mean_curvatures(layer: LastLayer) -> tuple[Tensor, Tensor]:
    """Means of the Hessian's diagonal over features, C, and over classes, F; float64."""
    num_examples, num_classes = layer.errors_NC.shape
    num_features = layer.features_ND.shape[1] + int(layer.has_bias)
    device = layer.features_ND.device
    by_class_C = torch.zeros(num_classes, dtype=torch.float64, device=device)
    by_feature_F = torch.zeros(num_features, dtype=torch.float64, device=device)
    row_bytes = 8 * (num_classes + num_features)
    for rows in row_blocks(num_examples, row_bytes, CACHED_BYTES):
        # |e| is p, or 1 - p of the label: p (1 - p) either way. Ridge heads have larger ones.
        shares_BC = layer.errors_NC[rows].double().abs().clamp_(max=1.0)
        spreads_BC = shares_BC * (1 - shares_BC)
        if layer.kind is TargetKind.NUMBER:
            spreads_BC.fill_(1.0)
        squares_BF = with_bias(layer.features_ND[rows].double(), float(layer.has_bias)).square()
        by_class_C += squares_BF.mean(dim=1) @ spreads_BC
        by_feature_F += spreads_BC.mean(dim=1) @ squares_BF
    return by_class_C / num_examples, by_feature_F / num_examples


def precondition(
    layer: LastLayer,
    *,
    damping: Annotated[float, Field(gt=0), "added to curvatures, as a share of their mean"] = 0.01,
) -> LastLayer:
    """Divide the gradients by the Hessian's factored diagonal; the bias becomes a feature."""
    by_class_C, by_feature_F = (_relative(means_n) for means_n in mean_curvatures(layer))
    features_NF = layer.features_ND.new_empty(len(layer), len(by_feature_F))
    errors_NC = torch.empty_like(layer.errors_NC)
    for rows in row_blocks(len(layer), 16 * (len(by_class_C) + len(by_feature_F))):
        errors_NC[rows] = layer.errors_NC[rows] / (by_class_C + damping)
        features_BF = with_bias(layer.features_ND[rows], float(layer.has_bias))
        features_NF[rows] = features_BF / (by_feature_F + damping)
    return replace(layer, errors_NC=errors_NC, features_ND=features_NF, has_bias=False)


@built_in(
    summary="craig, with gradients divided by the Hessian's diagonal",
    paper='Pooladzandi et al. 2022, "Adaptive Second Order Coresets" (arXiv:2207.13887)',
    cost=Cost(Growth.PAIRS, "N^2 (C + d)"),
    returns_weights=True,
    prepare=precondition,
    revision=1,
    is_random=True,
)
def adacore(layer: LastLayer, budget: int, *, seed: int, partitions: Partitions = 0) -> Selection:
    """CRAIG on gradients divided by the Hessian's diagonal, which compares Newton steps.

    The paper estimates the diagonal by Hutchinson's probes. For the last layer it has a closed
    form: mean_i p_ic (1 - p_ic) h_if^2, with a curvature of 1 for numbers. It is factored, as in
    Adafactor, into one curvature per class and one per feature.
    """
    return craig(layer, budget, seed=seed, partitions=partitions)


@built_in(
    summary="one example like each of all others, weighed by density",
    paper='Moser et al. 2025, "SubZeroCore" (arXiv:2509.21748)',
    cost=Cost(Growth.PAIRS, "N^2 d"),
    # Before 2, neighbours among more than 100,000 examples were searched approximately.
    revision=2,
    is_random=True,
)
def subzerocore(
    features: Features,
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
    the mean and the deviation of all radii: outliers and crowded examples have small weights. n is
    the smallest number with 1 - (N-1-n choose K) / (N-1 choose K) >= coverage, the expected share
    of examples of whose n nearest neighbours a random subset chooses one. In the paper s is the
    cosine, for which the sum is monotone only if no two features are opposite.
    """
    vectors = Vectors(features.features_ND)
    count = num_neighbours(len(features), budget, coverage)
    radii_N = neighbour_radii(vectors, count)
    chosen_K, _ = choose_representatives(
        with_weights(scaled_cosine(vectors), density_weights(radii_N)),
        budget,
        partitions=partitions,
        seed=seed,
    )
    return unweighted(chosen_K)


def num_neighbours(num_examples: int, budget: int, coverage: float) -> int:
    """The smallest n with that coverage by random subsets; 0 for one example."""
    uncovered = 1.0
    for count in range(1, num_examples):
        # Neither this neighbour nor a nearer one is chosen.
        uncovered *= max(0, num_examples - budget - count) / (num_examples - count)
        if 1 - uncovered >= coverage:
            return count
    return num_examples - 1


def neighbour_radii(vectors: Vectors, count: int) -> Tensor:
    """1 - similarity with each example's `count`-th most similar other one; N float32."""
    radii_N = torch.zeros(len(vectors), device=vectors.device)
    if count == 0:
        return radii_N
    for rows, distances_BN in other_distances(vectors):
        radii_N[rows] = distances_BN.kthvalue(count, dim=1).values.float()
    return radii_N


def density_weights(radii_N: Tensor) -> Tensor:
    """Density weight of each radius, in [0, 1]; N float32."""
    deviations_N = radii_N.double() - radii_N.double().mean()
    variance = deviations_N.square().mean()
    if float(variance.sqrt()) <= _NO_SPREAD:
        return torch.ones_like(radii_N)
    return (-deviations_N.square() / (2 * variance)).exp().float()
