"""Partition greedy (GreeDi): facility location in two rounds, where all pairs do not fit.

First each of P random parts chooses among itself what represents it; then the choice is
made among what the parts have chosen. The union is P times the budget, which pays off
where the budget is a small share of the data. Where the union itself would not fit, parts
choose fewer each, down to their share of the budget, which is then the answer.

Shapes: N examples, P parts, K budget, M candidates of the second round, T targets.
Source: Mirzasoleiman et al. 2013, "Distributed Submodular Maximization: Identifying
Representative Elements in Massive Data".
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from lipt.coordinator.selection.gradients.pairs import PairwiseSimilarity
from lipt.coordinator.selection.solvers.lazy import lazy_greedy
from lipt.coordinator.selection.solvers.levels import (
    MATRIX_BYTES,
    Precision,
    affordable_precision,
    fit_scale,
    most_examples,
    store_levels,
    store_levels_between,
)


def partition_greedy(
    similarity: PairwiseSimilarity,
    budget: int,
    *,
    generator: torch.Generator,
    matrix_bytes: int = MATRIX_BYTES,
) -> Tensor:
    """Choose `budget` examples that represent all, with no matrix larger than `matrix_bytes`.

    The second round counts how well a random sample of the examples is represented, where
    the matrix of its candidates with all of them would be too large.

    Returns:
        The ids in the order of choice, or part by part where there is no second round; K
        int64.
    """
    num_examples, capacity = len(similarity), most_examples(matrix_bytes)
    num_parts = min(num_examples, max(2, -(-num_examples // capacity)))
    edges = [num_examples * part // num_parts for part in range(num_parts + 1)]
    shares = [
        budget * stop // num_examples - budget * start // num_examples
        for start, stop in pairwise(edges)
    ]
    wide = min(budget, capacity // num_parts)
    if wide <= max(shares):
        counts = shares
    else:
        counts = [min(stop - start, wide) for start, stop in pairwise(edges)]
    shuffled_N = torch.randperm(num_examples, generator=generator).to(similarity.device)
    parts = [shuffled_N[start:stop].sort().values for start, stop in pairwise(edges)]
    union_M = torch.cat(
        [
            part_n[_greedy(similarity.take(part_n), count, matrix_bytes)]
            for part_n, count in zip(parts, counts, strict=True)
        ]
    )
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
    return candidates_M[lazy_greedy(levels, budget)]


def _greedy(part: PairwiseSimilarity, count: int, matrix_bytes: int) -> Tensor:
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=part.device)
    precision = _precision(len(part), len(part), matrix_bytes)
    return lazy_greedy(store_levels(part, fit_scale(part, precision)), count)


def _precision(num_rows: int, num_columns: int, matrix_bytes: int) -> Precision:
    # One row at least is held, whatever it takes.
    return affordable_precision(num_rows, num_columns, matrix_bytes) or "8-bit"
