"""SubZeroCore: examples of usual density that together are similar to every other one.

Facility location in which who represents is weighed by density: with similarities s_ij and
weights w_j, maximize the sum over all i of
    max over chosen j of w_j s_ij,    s = (1 + cosine) / 2.

The weight of an example comes from its radius r_j, the distance to its n-th nearest
neighbour: w_j = exp(-(r_j - mu)^2 / (2 sigma^2)), with the mean and the deviation of all
radii. Outliers and what stands too close together both weigh little. A radius in cosines or
in their scaled form makes no difference.

The number of neighbours is no option. It is the smallest n for which a random subset of
the budget's size would cover a share `coverage` of what it leaves out, an example being
covered where one of its n nearest neighbours is chosen:
    1 - (N-1-n choose K) / (N-1 choose K) >= coverage.

Neighbours are looked for among the examples given: the own class where the strategy is
balanced. Weights are positive, so the sum stays monotone and submodular, and greedy choice
reaches 1 - 1/e of the optimum.

Shapes: N examples, B rows of a block, D features, K budget.
Source: Moser et al. 2025 (arXiv:2509.21748), whose coverage is 0.6. Compared with a summary of
the paper and with another's implementation of it, not with its authors' code, which was not to
be had: the sum, the weights and the number of neighbours are the same. There s is the cosine
itself, by which the sum is monotone only where no two features point away from each other.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.pairs import scaled_cosine, weighing
from lipt.core.selection.gradients.vectors import Rows, ScaledCosine, Vectors
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.solvers.greedy import DEFAULT_EPSILON
from lipt.core.selection.solvers.neighbours import (
    SearchName,
    approximate_neighbours,
    is_approximate,
)
from lipt.core.selection.solvers.representatives import choose_representatives
from lipt.core.selection.strategies.common_options import (
    Epsilon,
    Partitions,
    Precision,
    Search,
    Solver,
)
from lipt.core.selection.strategy import FEATURES, Strategy
from lipt.core.signals.signals import Signals

# Of radii: below what float32 features can say of them.
_NO_SPREAD = 1e-7
# Of squared norms: below it there is no direction.
_TINY = 1e-300


def subzerocore(
    signals: Signals,
    budget: int,
    *,
    seed: int,
    coverage: Annotated[
        float, Field(gt=0, lt=1), "share that a random subset would cover; sets the neighbours"
    ] = 0.6,
    solver: Solver = "auto",
    precision: Precision = "auto",
    epsilon: Epsilon = DEFAULT_EPSILON,
    partitions: Partitions = 0,
    search: Search = "auto",
) -> Selection:
    """Keep the examples that represent all by density and similarity, greedily.

    In the order of what they add. Features that are all alike weigh the same.
    """
    vectors = Vectors(signals.features_ND)
    count = num_neighbours(len(signals), budget, coverage)
    radii_N = neighbour_radii(vectors, count, search=search)
    chosen = choose_representatives(
        weighing(scaled_cosine(vectors), density_weights(radii_N)),
        budget,
        solver=solver,
        precision=precision,
        epsilon=epsilon,
        partitions=partitions,
        seed=seed,
    )
    return unweighted(chosen.chosen_K)


def num_neighbours(num_examples: int, budget: int, coverage: float) -> int:
    """The smallest neighbourhood by which random subsets have that coverage; 0 for one example."""
    uncovered = 1.0
    for count in range(1, num_examples):
        # None of the nearer ones is chosen, and so is not this one.
        uncovered *= max(0, num_examples - budget - count) / (num_examples - count)
        if 1 - uncovered >= coverage:
            return count
    return num_examples - 1


def neighbour_radii(vectors: Vectors, count: int, *, search: SearchName = "auto") -> Tensor:
    """1 - similarity of each example's `count`-th most similar other one; N float32.

    Of an approximate search: of those that are found, so no smaller than it is.

    Computed in float64 and rounded, so that equal examples have equal radii wherever they
    stand. Zeros where there are no neighbours.
    """
    if count == 0:
        return torch.zeros(len(vectors), device=vectors.device)
    if is_approximate(search, len(vectors)):
        return _approximate_radii(vectors, count)
    similarity = ScaledCosine(Rows(vectors))
    radii = []
    for rows in row_blocks(len(vectors), 32 * len(vectors)):
        ids_B = torch.arange(rows.start, rows.stop, device=vectors.device)
        distances_BN = 1 - similarity.rows(ids_B)
        # Nobody is their own neighbour.
        distances_BN[torch.arange(len(ids_B), device=vectors.device), ids_B] = torch.inf
        radii.append(distances_BN.kthvalue(count, dim=1).values.float())
    return torch.cat(radii)


def _approximate_radii(vectors: Vectors, count: int) -> Tensor:
    radii_N = torch.empty(len(vectors), device=vectors.device)
    for rows, neighbours_BM in approximate_neighbours(vectors.features_ND, count, normalized=True):
        own_BD = vectors.features_ND[rows].double()
        last_BD = vectors.features_ND[neighbours_BM[:, -1]].double()
        radii_N[rows] = (1 - torch.cosine_similarity(own_BD, last_BD, dim=1, eps=_TINY)) / 2
    return radii_N


def density_weights(radii_N: Tensor) -> Tensor:
    """How usual each radius is, in [0, 1]; N float32. Ones where all are the same."""
    deviations_N = radii_N.double() - radii_N.double().mean()
    variance = deviations_N.square().mean()
    if float(variance.sqrt()) <= _NO_SPREAD:
        return torch.ones_like(radii_N)
    return (-deviations_N.square() / (2 * variance)).exp().float()


STRATEGY = Strategy(
    function=subzerocore,
    summary="one example like each of all others, weighed by how usual its density is",
    paper=(
        'Moser et al. 2025, "SubZeroCore: A Submodular Approach with Zero Training for Coreset '
        'Selection" (arXiv:2509.21748)'
    ),
    cost="N^2 d",
    needs=FEATURES,
    # Before, neighbours among more than 100,000 examples were exact.
    revision=1,
)
