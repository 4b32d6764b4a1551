"""Facility location: examples that together are similar to every other one.

Maximizes the sum over all i of max over chosen j of s(i, j). A random subset already has
0.99 of what greedy reaches, so values should be compared above that of random.

Shapes: N examples, C classes, D features, K budget.
Source: Wei et al. 2015, "Submodularity in Data Subset Selection and Active Learning" (ICML).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lipt.coordinator.selection.gradients.pairs import proximity, scaled_cosine
from lipt.coordinator.selection.gradients.vectors import SpaceName, in_space
from lipt.coordinator.selection.selection import Selection, unweighted
from lipt.coordinator.selection.solvers.representatives import (
    PrecisionName,
    SolverName,
    choose_representatives,
)
from lipt.coordinator.selection.solvers.stochastic import DEFAULT_EPSILON
from lipt.coordinator.signals.signals import Signals


def facility_location(
    signals: Signals,
    budget: int,
    *,
    seed: int,
    space: SpaceName = "gradients",
    similarity: Literal["cosine", "euclidean"] = "cosine",
    solver: SolverName = "auto",
    precision: PrecisionName = "auto",
    epsilon: Annotated[float, Field(gt=0, lt=1)] = DEFAULT_EPSILON,
) -> Selection:
    """Keep the examples that represent all, greedily, in the order of what they add.

    Args:
        signals: errors and features.
        budget: K.
        seed: of what stochastic and partition solvers draw.
        space: of which vectors the similarity is.
        similarity: (1 + cosine) / 2, or largest distance minus distance.
        solver: lazy is exact; auto is lazy where all pairs fit into memory, else partition.
        precision: how finely similarities are stored.
        epsilon: what the stochastic solver may lose of its guarantee.
    """
    vectors = in_space(signals, space)
    chosen = choose_representatives(
        scaled_cosine(vectors) if similarity == "cosine" else proximity(vectors),
        budget,
        solver=solver,
        precision=precision,
        epsilon=epsilon,
        seed=seed,
    )
    return unweighted(chosen.chosen_K)
