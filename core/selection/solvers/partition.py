"""Partition greedy (GreeDi): facility location in two rounds, where all pairs do not fit.

First each of P random parts chooses among itself, of w examples, what represents it; then K are
chosen among what the parts have chosen, and what the best part has chosen stands where that is
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
from itertools import pairwise

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.pairs import PairwiseSimilarity
from lipt.core.selection.solvers.lazy import lazy_greedy
from lipt.core.selection.solvers.levels import (
    MATRIX_BYTES,
    Precision,
    StoredLevels,
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
    """The sum over all targets of their highest level with one of the examples."""
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
