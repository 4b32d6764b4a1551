"""Greedy choice: of the largest gain, from bounds (lazy), from samples, or row by row.

Lazy: what an example adds can only shrink as others are chosen (submodularity), so an old gain
bounds the new one. Whoever is ahead of all bounds with a gain that is up to date is the
largest, and about five examples per pick have to be looked at instead of N.

Stochastic: a sample of ceil(N / K ln(1 / epsilon)) holds one of the K best with probability
1 - epsilon, which keeps 1 - 1/e - epsilon of the optimum in N ln(1 / epsilon) evaluations
altogether. An epsilon near 1 is no greedy at all: 0.9 samples a single candidate at
K / N = 10%, which is a random subset.

One by one: each pick needs one row of a kernel. A product of one row with all examples waits for
memory; one of 64 rows takes little longer. So the rows of the examples that promise most now are
computed together and kept until a pick is not among them, which does not change what is picked.

Shapes: N examples to choose from, T to be represented, K budget, B evaluated together.
Source: Minoux 1978, "Accelerated greedy algorithms for maximizing submodular set functions";
Mirzasoleiman et al. 2015, "Lazier Than Lazy Greedy" (arXiv:1409.7938).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipt.common.signals.blocks import BLOCK_BYTES
from lipt.core.selection.compiling import can_compile
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.solvers.levels import LevelRows, StoredLevels

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
    from lipt.core.selection.compiled_loops import (  # noqa: PLC0415 - numba
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


DEFAULT_EPSILON = 0.1


def sample_size(num_candidates: int, budget: int, epsilon: float) -> int:
    """How many candidates are looked at for each pick."""
    return math.ceil(num_candidates / budget * math.log(1 / epsilon))


def stochastic_facility_location(
    levels: LevelRows, budget: int, *, epsilon: float, generator: torch.Generator
) -> Tensor:
    """Choose the examples that represent all; rows may be stored, or computed when looked at.

    Args:
        levels: of N examples.
        budget: K.
        epsilon: in (0, 1), how much of the guarantee may be given up.
        generator: where samples are drawn; on the CPU.

    Returns:
        The ids in the order of choice; K int64 on the CPU. Ties go to the lowest id.
    """
    best_N = torch.zeros_like(levels.rows(torch.tensor([0]))[0])

    def take(candidate: int) -> None:
        torch.maximum(best_N, levels.rows(torch.tensor([candidate]))[0], out=best_N)

    return stochastic_greedy(
        len(levels),
        budget,
        gains_of=lambda ids_B: gains_over(levels.rows(ids_B), best_N),
        take=take,
        epsilon=epsilon,
        generator=generator,
    )


def stochastic_greedy(
    num_candidates: int,
    budget: int,
    *,
    gains_of: Callable[[Tensor], Tensor],
    take: Callable[[int], None],
    epsilon: float,
    generator: torch.Generator,
) -> Tensor:
    """Choose the best of a random sample, `budget` times.

    Args:
        num_candidates: N.
        budget: K, in 1..N.
        gains_of: from B ascending ids, what each would add to what has been taken.
        take: told each id that is chosen.
        epsilon: in (0, 1), how much of the guarantee may be given up.
        generator: where samples are drawn; on the CPU.

    Returns:
        The ids in the order of choice; K int64 on the CPU. Ties go to the lowest id.
    """
    size = sample_size(num_candidates, budget, epsilon)
    left = list(range(num_candidates))
    chosen = []
    for _ in range(budget):
        count = min(size, len(left))
        # The first steps of a shuffle: a sample without repetition, whatever the order of `left`.
        for step, draw in enumerate(torch.rand(count, generator=generator).tolist()):
            other = step + min(int(draw * (len(left) - step)), len(left) - step - 1)
            left[step], left[other] = left[other], left[step]
        sample = sorted((candidate, place) for place, candidate in enumerate(left[:count]))
        ids_B = torch.tensor([candidate for candidate, _ in sample])
        candidate, place = sample[int(gains_of(ids_B).argmax())]
        take(candidate)
        chosen.append(candidate)
        left[place] = left[-1]
        left.pop()
    return torch.tensor(chosen)


ROWS_AHEAD = 64


def choose_one_by_one(
    gains_N: Tensor,
    budget: int,
    *,
    rows_of: Callable[[Tensor], Tensor],
    update: Callable[[Tensor, Tensor, int], None],
    rows_ahead: int = ROWS_AHEAD,
) -> Selection:
    """Pick the largest gain `budget` times, with an update after each pick.

    Gains are compared in float32, so that those of equal examples tie whatever their
    last bits; ties go to the lowest id.

    Args:
        gains_N: float64, finite; overwritten. What is picked gets -inf.
        budget: K, in 1..N.
        rows_of: from B positions, their B x N rows of the kernel.
        update: told the gains to change in place, the row of the pick and its position.
            -inf has to stay -inf.
        rows_ahead: B, less where B rows would be large.

    Returns:
        K distinct positions, in the order of choice, each with weight 1.
    """
    rows_ahead = max(1, min(rows_ahead, BLOCK_BYTES // (8 * len(gains_N))))
    slots: dict[int, int] = {}
    rows_BN = gains_N.new_empty(0, len(gains_N))
    picks = []
    for num_left in range(budget, 0, -1):
        position = int(gains_N.float().argmax())
        picks.append(position)
        if position not in slots and num_left > 1:
            positions_B = _most_promising(gains_N, position, min(rows_ahead, num_left))
            rows_BN = rows_of(positions_B)
            slots = {found: slot for slot, found in enumerate(positions_B.tolist())}
        if num_left > 1:
            update(gains_N, rows_BN[slots[position]], position)
        gains_N[position] = -torch.inf
    return unweighted(torch.tensor(picks, device=gains_N.device))


def _most_promising(gains_N: Tensor, position: int, count: int) -> Tensor:
    best_B = gains_N.topk(count).indices
    others_B = best_B[best_B != position][: count - 1]
    return torch.cat([others_B.new_tensor([position]), others_B])
