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

from lipt.core.selection.gradients.pairs import proximity
from lipt.core.selection.gradients.vectors import Vectors, gradients_of
from lipt.core.selection.selection import Selection
from lipt.core.selection.solvers.clusters import cluster_sizes
from lipt.core.selection.solvers.representatives import choose_representatives
from lipt.core.selection.solvers.stochastic import DEFAULT_EPSILON
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
