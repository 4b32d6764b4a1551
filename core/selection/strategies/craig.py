"""CRAIG: examples whose gradients stand for those of all others, weighted by how many.

Replacing each gradient by its nearest chosen one changes the sum of all gradients by no
more than the sum of the distances. Minimizing that bound over subsets is facility location
with similarity "largest distance minus distance", and a chosen example weighs as much as
its cluster: the weights sum to N.

Shapes: N examples, C classes, D features, K budget.
Source: Mirzasoleiman et al. 2020 (arXiv:1906.01827).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.pairs import proximity
from lipt.core.selection.gradients.vectors import Vectors, gradients_of
from lipt.core.selection.selection import Selection
from lipt.core.selection.solvers.greedy import DEFAULT_EPSILON
from lipt.core.selection.solvers.levels import LevelRows
from lipt.core.selection.solvers.representatives import choose_representatives
from lipt.core.selection.strategies.common_options import (
    Epsilon,
    Partitions,
    Precision,
    Solver,
)
from lipt.core.selection.strategy import Strategy
from lipt.core.signals.signals import Signals


def craig(
    signals: Signals,
    budget: int,
    *,
    seed: int,
    metric: Annotated[
        Literal["gradients", "errors"],
        "distances of last-layer gradients, or of gradients by the logits alone",
    ] = "gradients",
    solver: Solver = "auto",
    precision: Precision = "auto",
    epsilon: Epsilon = DEFAULT_EPSILON,
    partitions: Partitions = 0,
) -> Selection:
    """Keep the examples that are nearest to all others, in the order of what they add.

    Returns:
        Weights: how many of the N examples each one represents, itself included.
    """
    chosen = choose_representatives(
        proximity(gradients_of(signals) if metric == "gradients" else Vectors(signals.errors_NC)),
        budget,
        solver=solver,
        precision=precision,
        epsilon=epsilon,
        partitions=partitions,
        seed=seed,
    )
    sizes_K = cluster_sizes(chosen.levels, chosen.chosen_K)
    return Selection(chosen.chosen_K, sizes_K.to(torch.float32))


def cluster_sizes(levels: LevelRows, chosen_K: Tensor) -> Tensor:
    """How many examples each chosen one represents; they sum to N.

    Every example counts once, with the chosen one that it is most similar to. Ties go to
    the lowest id, but a chosen example always represents itself.

    Returns:
        K int64, in the order of `chosen_K`, whose ids are distinct; none below 1.
    """
    ids_K, order_K = chosen_K.sort()
    best_N = torch.full((len(levels),), -1, dtype=torch.int32, device=chosen_K.device)
    owners_N = torch.zeros(len(levels), dtype=torch.int64, device=chosen_K.device)
    for rows in row_blocks(len(ids_K), 16 * len(levels)):
        highest_N, places_N = levels.rows(ids_K[rows]).max(dim=0)
        # Strictly: an equal level of a higher id does not count.
        better_N = highest_N > best_N
        best_N[better_N] = highest_N[better_N].int()
        owners_N[better_N] = places_N[better_N] + rows.start
    owners_N[ids_K] = torch.arange(len(ids_K), device=chosen_K.device)
    sizes_K = torch.empty_like(chosen_K)
    sizes_K[order_K] = owners_N.bincount(minlength=len(ids_K))
    return sizes_K


STRATEGY = Strategy(
    function=craig,
    summary="nearest to all gradients, weighted by how many each one stands for",
    paper=(
        'Mirzasoleiman et al. 2020, "Coresets for Data-efficient Training of Machine Learning '
        'Models" (arXiv:1906.01827)'
    ),
    cost="N^2 (C + d)",
    returns_weights=True,
    revision=1,
)
