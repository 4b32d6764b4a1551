"""Lazy greedy: exact facility location that computes few gains again after each pick.

What an example adds can only shrink as others are chosen (submodularity), so an old gain
bounds the new one. Whoever is ahead of all bounds with a gain that is up to date is the
largest, and about five examples per pick have to be looked at instead of N.

Shapes: N examples to choose from, T to be represented, K budget, B evaluated together.
Source: Minoux 1978, "Accelerated greedy algorithms for maximizing submodular set functions".
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.core.selection.compiling import can_compile
from lipt.core.selection.solvers.levels import StoredLevels

_BATCH_SIZE = 16


def lazy_greedy(levels: StoredLevels, budget: int) -> Tensor:
    """Choose the examples that represent all, each time the one that adds most.

    Maximizes the sum over all T of their highest level with a chosen one. Ties go
    to the lowest id, so the answer is the plain greedy algorithm's.

    Returns:
        The ids in the order of choice; K int64. Once nothing adds anything they are the
        lowest that are left.
    """
    if not can_compile(levels.matrix_NT.device):
        return lazy_greedy_torch(levels, budget)
    from lipt.core.selection.solvers.compiled_lazy import (  # noqa: PLC0415 - numba
        lazy_greedy_compiled,
    )

    gains_N = levels.sums_N.clone().numpy()
    return torch.from_numpy(lazy_greedy_compiled(levels.matrix_NT.numpy(), gains_N, budget))


def lazy_greedy_torch(levels: StoredLevels, budget: int) -> Tensor:
    """The same without compiled code, and on any device: bounds are refreshed some at a time."""
    matrix_NT = levels.matrix_NT
    device = matrix_NT.device
    bounds_N = levels.sums_N.clone()
    current_N = torch.ones(len(levels), dtype=torch.bool, device=device)
    best_T = torch.zeros_like(matrix_NT[0])
    chosen_K = torch.empty(budget, dtype=torch.int64, device=device)
    for pick in range(budget):
        top = bounds_N.argmax()
        while not current_N[top] and bounds_N[top] > 0:
            stale_N = bounds_N.masked_fill(current_N, -1)
            ids_B = stale_N.topk(min(_BATCH_SIZE, len(levels))).indices
            ids_B = ids_B[stale_N[ids_B] >= 0]
            bounds_N[ids_B] = gains_over(matrix_NT[ids_B], best_T)
            current_N[ids_B] = True
            top = bounds_N.argmax()
        chosen_K[pick] = top
        torch.maximum(best_T, matrix_NT[top], out=best_T)
        # Below every bound: never looked at again.
        bounds_N[top] = -1
        current_N.fill_(False)
    return chosen_K


def gains_over(rows_BT: Tensor, best_T: Tensor) -> Tensor:
    """What each row has above the best level so far, summed; B int64."""
    sums_B = torch.maximum(rows_BT, best_T).sum(dim=1, dtype=torch.int64)
    return sums_B - best_T.sum(dtype=torch.int64)
