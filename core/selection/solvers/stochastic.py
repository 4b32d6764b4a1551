"""Stochastic greedy: each pick is the best of a random few, not of all.

A sample of ceil(N / K ln(1 / epsilon)) holds one of the K best with probability
1 - epsilon, which keeps 1 - 1/e - epsilon of the optimum in N ln(1 / epsilon) evaluations
altogether. An epsilon near 1 is no greedy at all: 0.9 samples a single candidate at
K / N = 10%, which is a random subset.

Shapes: N examples, K budget, B of a sample.
Source: Mirzasoleiman et al. 2015, "Lazier Than Lazy Greedy" (arXiv:1409.7938).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipt.core.selection.solvers.lazy import gains_over
from lipt.core.selection.solvers.levels import LevelRows

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
