"""Facility location: examples that together are similar to every other one.

Maximizes the sum over all i of max over chosen j of s(i, j). A random subset already has
0.99 of what greedy reaches, so values should be compared above that of random.

Shapes: N examples, C classes, D features, K budget.
Source: Wei et al. 2015 (ICML).
"""

from __future__ import annotations

from typing import Annotated, Literal

from lipt.core.selection.gradients.pairs import proximity, scaled_cosine
from lipt.core.selection.gradients.vectors import in_space
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.solvers.greedy import DEFAULT_EPSILON
from lipt.core.selection.solvers.representatives import choose_representatives
from lipt.core.selection.strategies.common_options import (
    Epsilon,
    Partitions,
    Precision,
    Solver,
    Space,
    needs_of_space,
)
from lipt.core.selection.strategy import Strategy
from lipt.core.signals.signals import Signals


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
    solver: Solver = "auto",
    precision: Precision = "auto",
    epsilon: Epsilon = DEFAULT_EPSILON,
    partitions: Partitions = 0,
) -> Selection:
    """Keep the examples that represent all, greedily, in the order of what they add."""
    vectors = in_space(signals, space)
    chosen = choose_representatives(
        scaled_cosine(vectors) if similarity == "cosine" else proximity(vectors),
        budget,
        solver=solver,
        precision=precision,
        epsilon=epsilon,
        partitions=partitions,
        seed=seed,
    )
    return unweighted(chosen.chosen_K)


STRATEGY = Strategy(
    function=facility_location,
    summary="one example like each of all others, by gradient or feature",
    paper=('Wei et al. 2015, "Submodularity in Data Subset Selection and Active Learning" (ICML)'),
    cost="N^2 (C + d)",
    needs=needs_of_space,
    revision=1,
)
