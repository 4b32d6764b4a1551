"""MILO: a curriculum of subsets, from easy ones to diverse ones, each drawn anew.

It is meant for training that changes its subset every epoch: the first sixth of the epochs
on easy subsets, the rest on diverse ones, `draw` counting up. The subsets depend on features
alone, never on the model being trained.

Easy: examples that are like all the others, by stochastic greedy on the graph cut
    sum_{i in V, j in S} s_ij - 0.4 sum_{i, j in S} s_ij,    s = (1 + cosine) / 2,
whose random samples make every draw another subset.

Diverse: a random draw in which an example's weight is the Taylor-softmax 1 + g + g^2 / 2 of
its gain g in disparity, the smallest distance within a set. Examples are taken one by one,
each farthest from those before it, and g is that distance, (1 - cosine) relative to the
farthest pair: it is near 1 for who is like nobody and 0 for duplicates.

What is this variant: the authors' gain is the difference that an example makes to the
smallest distance. In greedy choice that is nearly 0 for all but the first few, weights by it
differ by less than a percent for nearly all, and the draw is uniform. So g is here the
smallest distance itself. The weights still differ by a factor of 2.5 at most; a diverse draw is a
mild correction to a random subset.

Shapes: N examples, B of a sample, D features, K budget.
Source: Killamsetty et al. 2023 (arXiv:2301.13287); the 0.4 is that of their code.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.vectors import Rows, Vectors
from lipt.core.selection.selection import Selection, draw_by_weight, unweighted
from lipt.core.selection.solvers.greedy import DEFAULT_EPSILON, choose_one_by_one, stochastic_greedy
from lipt.core.selection.solvers.unit_rows import exact_bits, unit_rows
from lipt.core.selection.strategy import FEATURES, Strategy
from lipt.core.signals.signals import Signals

REPULSION = 0.4


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
    """Draw one subset of a stage; all draws of a stage are equally good.

    A feature of zeros has no direction: its cosine with everything is 0.
    """
    generator = derive_generator(seed, f"milo-{stage}", draw)
    rows_ND = unit_rows(signals.features_ND, exact_bits(len(signals)))
    if stage == "easy":
        return unweighted(_typical(rows_ND, budget, generator))
    gains_N = disparity_gains(rows_ND)
    weights_N = 1 + gains_N + gains_N.square() / 2
    return draw_by_weight(weights_N.log(), budget, generator=generator)


def _typical(rows_ND: Tensor, budget: int, generator: torch.Generator) -> Tensor:
    """Stochastic greedy on the graph cut; K int64 on the CPU.

    What all candidates of a pick share is left out of their gains, and the rest doubled.
    Inner products of unit rows are exact, so equal examples have equal gains.
    """
    blocks = list(row_blocks(len(rows_ND), 16 * rows_ND.shape[1]))
    total_D = torch.stack([rows_ND[rows].double().sum(dim=0) for rows in blocks]).sum(dim=0)
    picked_D = torch.zeros_like(total_D)
    likeness_N = torch.cat([rows_ND[rows].double() @ total_D for rows in blocks])
    squares_N = torch.cat([rows_ND[rows].double().square().sum(dim=-1) for rows in blocks])
    own_N = likeness_N - REPULSION * squares_N

    def gains_of(ids_B: Tensor) -> Tensor:
        return own_N[ids_B] - 2 * REPULSION * (rows_ND[ids_B].double() @ picked_D)

    def take(candidate: int) -> None:
        picked_D.add_(rows_ND[candidate])

    return stochastic_greedy(
        len(rows_ND),
        budget,
        gains_of=gains_of,
        take=take,
        epsilon=DEFAULT_EPSILON,
        generator=generator,
    )


def disparity_gains(rows_ND: Tensor) -> Tensor:
    """How far each example is from those taken before it, in [0, 1]; N float64.

    All are taken, the one nearest to the mean first: alone it has no distance, and gains 0.

    Args:
        rows_ND: unit rows. Their squared distances are twice 1 - cosine.
    """
    rows = Rows(Vectors(rows_ND))
    gains_N = torch.zeros_like(rows.squares_N)
    farthest = torch.zeros_like(gains_N[:1])
    started = False

    def approach(distances_N: Tensor, row_N: Tensor, position: int) -> None:
        nonlocal started
        torch.maximum(farthest, row_N.max(), out=farthest)
        if started:
            gains_N[position] = distances_N[position]
            torch.minimum(distances_N, row_N, out=distances_N)
        else:
            distances_N.copy_(row_N)
            started = True

    order_N = choose_one_by_one(
        -rows.squared_distances_from_mean(),
        len(rows),
        rows_of=rows.squared_distances,
        update=approach,
    ).indices_K
    # Nothing has to be updated for the last one, but it has a gain, too.
    row_N = rows.squared_distances(order_N[-1:])[0]
    others = order_N[:-1]
    gains_N[order_N[-1:]] = row_N[others].min() if len(others) else 0.0
    # Where all directions are the same there is nothing to compare with.
    return torch.where(farthest > 0, gains_N / farthest, 0.0)


STRATEGY = Strategy(
    function=milo,
    summary="a curriculum of random subsets: typical examples, then diverse ones",
    paper=(
        'Killamsetty et al. 2023, "MILO: Model-Agnostic Subset Selection Framework for Efficient '
        'Model Training and Tuning" (arXiv:2301.13287)'
    ),
    cost="N d; diverse: N^2 d",
    needs=FEATURES,
)
