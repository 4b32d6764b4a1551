"""MILO: a curriculum of subsets, from easy to diverse ones, resampled every epoch.

The first sixth of the epochs trains on easy subsets, the rest on diverse ones, each with another
`draw`. The subsets depend on features alone.

Easy: by stochastic greedy on the graph cut
    sum_{i in V, j in S} s_ij - 0.4 sum_{i, j in S} s_ij,    s = (1 + cosine) / 2,
the best of each pick's random sample of ceil(N / K ln(1 / epsilon)), as in "Lazier Than Lazy
Greedy" (Mirzasoleiman et al. 2015, arXiv:1409.7938).

Diverse: a random draw by the Taylor-softmax 1 + g + g^2 / 2 of each example's gain g in disparity,
at most 2.5. Examples are ordered one by one, each farthest from those before it. g is that
distance, 1 - cosine, relative to the farthest pair. (By the authors' gain, the difference to the
smallest distance, the draw is uniform.)

Shapes: N examples, B of a sample, D features, K budget.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.selection import Selection, draw_by_weight, unweighted
from lipt.core.selection.solvers.linear_cut import exact_bits, unit_rows
from lipt.core.selection.strategies.one_by_one import farthest_first
from lipt.core.selection.strategy import FEATURES, built_in
from lipt.core.selection.vectors import Rows, Vectors
from lipt.core.signals.signals import Signals

REPULSION = 0.4
_EPSILON = 0.1


@built_in(
    summary="a curriculum of random subsets: typical examples, then diverse ones",
    paper='Killamsetty et al. 2023, "MILO" (arXiv:2301.13287)',
    cost="N d; diverse: N^2 d",
    needs=FEATURES,
)
def milo(
    signals: Signals,
    budget: int,
    *,
    stage: Annotated[
        Literal["easy", "diverse"], "of the curriculum: a sixth of the epochs, then the rest"
    ] = "easy",
    draw: Annotated[int, Field(ge=0), "which of the stage's random subsets"] = 0,
    seed: int,
) -> Selection:
    """Draw one subset of a stage."""
    generator = derive_generator(seed, f"milo-{stage}", draw)
    rows_ND = unit_rows(signals.features_ND, exact_bits(len(signals)))
    if stage == "easy":
        return unweighted(_typical(rows_ND, budget, generator))
    gains_N = disparity_gains(rows_ND)
    weights_N = 1 + gains_N + gains_N.square() / 2
    return draw_by_weight(weights_N.log(), budget, generator=generator)


def _typical(rows_ND: Tensor, budget: int, generator: torch.Generator) -> Tensor:
    """Stochastic greedy on the graph cut; K int64 on the CPU."""
    blocks = list(row_blocks(len(rows_ND), 16 * rows_ND.shape[1]))
    total_D = torch.stack([rows_ND[rows].double().sum(dim=0) for rows in blocks]).sum(dim=0)
    picked_D = torch.zeros_like(total_D)
    likeness_N = torch.cat([rows_ND[rows].double() @ total_D for rows in blocks])
    squares_N = torch.cat([rows_ND[rows].double().square().sum(dim=-1) for rows in blocks])
    own_N = likeness_N - REPULSION * squares_N
    left, size = list(range(len(rows_ND))), sample_size(len(rows_ND), budget)
    picks = []
    for _ in range(budget):
        sample = draw_ahead(left, size, generator)
        ids_B = torch.tensor([candidate for candidate, _ in sample])
        gains_B = own_N[ids_B] - 2 * REPULSION * (rows_ND[ids_B].double() @ picked_D)
        candidate, place = sample[int(gains_B.argmax())]
        picked_D += rows_ND[candidate]
        picks.append(candidate)
        left[place] = left[-1]
        left.pop()
    return torch.tensor(picks)


def sample_size(num_examples: int, budget: int) -> int:
    """Size of the random sample of each pick."""
    return math.ceil(num_examples / budget * math.log(1 / _EPSILON))


def draw_ahead(left: list[int], size: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """A random sample of candidates, moved to the front, each with its position; ascending."""
    count = min(size, len(left))
    # The first steps of a shuffle.
    for step, draw in enumerate(torch.rand(count, generator=generator).tolist()):
        other = step + min(int(draw * (len(left) - step)), len(left) - step - 1)
        left[step], left[other] = left[other], left[step]
    return sorted((candidate, place) for place, candidate in enumerate(left[:count]))


def disparity_gains(rows_ND: Tensor) -> Tensor:
    """Distance of each unit row from those before it, in [0, 1]; N float64."""
    rows = Rows(Vectors(rows_ND))
    gains_N = torch.zeros_like(rows.squares_N)
    farthest = torch.zeros_like(gains_N[:1])
    for position, distance, row_N in farthest_first(rows, len(rows)):
        gains_N[position] = distance
        farthest = torch.maximum(farthest, row_N.max())
    # If all directions are equal, all gains are 0.
    return torch.where(farthest > 0, gains_N / farthest, 0.0)
