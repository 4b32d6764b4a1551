"""Facility location: choose examples that are together as similar to all others as can be.

The sum over all examples of the similarity with their most similar chosen one is monotone
and submodular: greedy reaches 1 - 1/e of the optimum. This file decides how it is
maximized in the memory there is.

Where all pairs do not fit, partition greedy (GreeDi) takes two rounds. First each of P random
parts chooses among itself, of w examples, what represents it; then K are chosen among what the
parts have chosen, and what the best part has chosen stands where that is
better. The union is P times the budget, which pays off where the budget is a small share of
the data. Where the union itself would not fit, parts choose fewer each, down to their share of
the budget, which is then the answer, without a second round and without a bound.

The bound, of f = the mean over examples of the level with the most similar chosen one, levels
in 0..1, and O the best K of all:

    f(answer) >= (1 - e^(-w / K)) / min(P, K) f(O) - 2 epsilon

O lies in at most min(P, K) parts, so by submodularity what one of them has of it is worth
that share; greedy reaches the first factor of it (w = K: 0.63), by the part's own examples,
whose mean differs from that of all by no more than epsilon: parts of n examples are drawn
evenly, so that by Hoeffding's inequality over all subsets
epsilon <= sqrt((K ln N + ln(2 P / delta)) / (2 n)) with probability 1 - delta. It is of the worst
case, and says nothing of budgets that are no small share of a part. Answers are measured
to be far better: see the benchmarks. Where the second round looks at a sample of T examples, it
costs another 2 epsilon, of n = T.

Shapes: N examples, P parts, n examples of a part, K budget, M candidates of the second round,
T targets.
Source: Mirzasoleiman et al. 2013, "Distributed Submodular Maximization: Identifying
Representative Elements in Massive Data".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.pairs import PairwiseSimilarity
from lipt.core.selection.solvers.greedy import lazy_greedy, stochastic_facility_location
from lipt.core.selection.solvers.levels import (
    MATRIX_BYTES,
    ComputedLevels,
    LevelRows,
    Precision,
    StoredLevels,
    affordable_precision,
    fit_scale,
    most_examples,
    store_levels,
    store_levels_between,
)

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


def partition_greedy(
    similarity: PairwiseSimilarity,
    budget: int,
    *,
    generator: torch.Generator,
    partitions: int = 0,
    matrix_bytes: int = MATRIX_BYTES,
) -> Tensor:
    """Choose `budget` examples that represent all, with no matrix larger than `matrix_bytes`.

    The second round counts how well a random sample of the examples is represented, where
    the matrix of its candidates with all of them would be too large.

    Args:
        similarity: of N examples.
        budget: K, in 1..N.
        generator: draws the parts, and the second round's sample.
        partitions: P; two at least, and more where the parts would not fit.
        matrix_bytes: what the levels of a round may take.

    Returns:
        The ids in the order of choice, or part by part where there is no second round; K
        int64.
    """
    num_examples, capacity = len(similarity), most_examples(matrix_bytes)
    num_parts = min(num_examples, max(2, partitions, -(-num_examples // capacity)))
    edges = [num_examples * part // num_parts for part in range(num_parts + 1)]
    shares = [
        budget * stop // num_examples - budget * start // num_examples
        for start, stop in pairwise(edges)
    ]
    wide = min(budget, capacity // num_parts)
    if wide < budget and wide <= max(shares):
        counts = shares
    else:
        counts = [min(stop - start, wide) for start, stop in pairwise(edges)]
    shuffled_N = torch.randperm(num_examples, generator=generator).to(similarity.device)
    parts = [shuffled_N[start:stop].sort().values for start, stop in pairwise(edges)]
    choices = [
        part_n[_greedy(similarity.take(part_n), count, matrix_bytes)]
        for part_n, count in zip(parts, counts, strict=True)
    ]
    union_M = torch.cat(choices)
    if len(union_M) == budget:
        return union_M
    candidates_M = union_M.sort().values
    num_targets = min(num_examples, max(1, matrix_bytes // len(candidates_M)))
    targets_T = torch.randperm(num_examples, generator=generator)[:num_targets]
    precision = _precision(len(candidates_M), num_targets, matrix_bytes)
    levels = store_levels_between(
        similarity,
        fit_scale(similarity, precision),
        candidates_M,
        targets_T.sort().values.to(similarity.device),
    )
    places = [torch.searchsorted(candidates_M, choice_n) for choice_n in choices]
    return candidates_M[better_of(levels, lazy_greedy(levels, budget), places)]


def better_of(levels: StoredLevels, chosen_K: Tensor, choices: Sequence[Tensor]) -> Tensor:
    """The chosen examples, or the best of the choices where that represents more; K int64.

    Args:
        levels: of the candidates with the targets.
        chosen_K: of the second round, as rows of the levels.
        choices: of the parts, likewise, of K rows at most. Fewer are filled up by what the
            second round chose, in its order.
    """
    values = [_value(levels, choice_n) for choice_n in choices]
    if max(values) <= _value(levels, chosen_K):
        return chosen_K
    best_n = choices[values.index(max(values))]
    others = chosen_K[~torch.isin(chosen_K, best_n)]
    return torch.cat([best_n, others])[: len(chosen_K)]


def _value(levels: StoredLevels, ids_n: Tensor) -> int:
    best_T = torch.zeros_like(levels.matrix_NT[0])
    row_bytes = len(best_T) * best_T.element_size()
    for rows in row_blocks(len(ids_n), row_bytes):
        torch.maximum(best_T, levels.rows(ids_n[rows]).amax(dim=0), out=best_T)
    return int(best_T.sum(dtype=torch.int64))


def _greedy(part: PairwiseSimilarity, count: int, matrix_bytes: int) -> Tensor:
    if count in {0, len(part)}:
        return torch.arange(count, device=part.device)
    precision = _precision(len(part), len(part), matrix_bytes)
    return lazy_greedy(store_levels(part, fit_scale(part, precision)), count)


def _precision(num_rows: int, num_columns: int, matrix_bytes: int) -> Precision:
    # One row at least is held, whatever it takes.
    return affordable_precision(num_rows, num_columns, matrix_bytes) or "8-bit"
