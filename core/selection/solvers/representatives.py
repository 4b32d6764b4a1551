"""Facility location: choose examples that are together as similar to all others as can be.

The sum over all examples of the similarity with their most similar chosen one is monotone
and submodular: greedy reaches 1 - 1/e of the optimum. This file decides how it is
maximized in the memory there is.

Shapes: N examples, K budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection.gradients.pairs import PairwiseSimilarity
from lipt.core.selection.solvers.lazy import lazy_greedy
from lipt.core.selection.solvers.levels import (
    MATRIX_BYTES,
    ComputedLevels,
    LevelRows,
    Precision,
    affordable_precision,
    fit_scale,
    store_levels,
)
from lipt.core.selection.solvers.partition import partition_greedy
from lipt.core.selection.solvers.stochastic import stochastic_facility_location

# auto: lazy where all pairs fit, else partition; or as the number of partitions says.
SolverName = Literal["auto", "lazy", "stochastic", "partition"]
# auto: the finest that is fast.
PrecisionName = Literal["auto", "24-bit", "16-bit", "8-bit"]


@dataclass(frozen=True)
class Representatives:
    """Chosen examples, in the order of choice, and how similar they are to all.

    levels: never of 8 bits, which do for choosing, but leave too many examples at the same
        level with two of the chosen to tell whose they are.
    """

    chosen_K: Tensor
    levels: LevelRows


def choose_representatives(
    similarity: PairwiseSimilarity,
    budget: int,
    *,
    solver: SolverName,
    precision: PrecisionName,
    epsilon: float,
    partitions: int,
    seed: int,
    matrix_bytes: int = MATRIX_BYTES,
) -> Representatives:
    """Choose `budget` of N examples by greedy facility location.

    Args:
        similarity: of N examples.
        budget: K, in 1..N.
        solver: lazy is exact and holds all pairs, whatever they take; stochastic holds them
            where they fit and else computes rows as it looks at them; partition holds those
            of a part at a time.
        precision: how many levels similarities are held with; partition decides for itself.
        epsilon: of the stochastic solver, in (0, 1).
        partitions: parts of the partition solver, of which 1 is lazy; 0 for as many as memory
            needs, and two at least. Given, auto is partition.
        seed: of what the stochastic and the partition solver draw.
        matrix_bytes: what the similarities of all pairs may take.
    """
    affordable = affordable_precision(len(similarity), len(similarity), matrix_bytes)
    if solver == "auto":
        solver = "lazy" if affordable and not partitions else "partition"
    if solver == "partition" and partitions == 1:
        solver = "lazy"
    computed = ComputedLevels(similarity, fit_scale(similarity, "24-bit"))
    if solver == "partition":
        generator = derive_generator(seed, "facility-location-parts")
        chosen_K = partition_greedy(
            similarity,
            budget,
            generator=generator,
            partitions=partitions,
            matrix_bytes=matrix_bytes,
        )
        return Representatives(chosen_K, computed)
    chosen_precision: Precision = (affordable or "8-bit") if precision == "auto" else precision
    scale = fit_scale(similarity, chosen_precision)
    if solver == "lazy":
        stored = store_levels(similarity, scale)
        finest: LevelRows = computed if chosen_precision == "8-bit" else stored
        return Representatives(lazy_greedy(stored, budget), finest)
    levels: LevelRows = store_levels(similarity, scale) if affordable else computed
    finest = computed if chosen_precision == "8-bit" else levels
    generator = derive_generator(seed, "facility-location-samples")
    chosen_K = stochastic_facility_location(
        levels, budget, epsilon=epsilon, generator=generator
    ).to(similarity.device)
    return Representatives(chosen_K, finest)
