"""Stratified: random examples, shared out over cells of the feature space.

A plain random subset has too many examples of one kind by chance, and of a rare kind none.
Cells of k-means are drawn from separately, so every kind gets its share; within a cell the
draw is random, for what a proxy cannot tell apart it should not decide. Equal shares give
kinds that are rare as many as those that are common, which also takes out what is repeated;
shares in proportion keep the data's frequencies, and its repetitions.

Cells are of directions: features are compared by their cosine.

Shapes: N examples, G cells, K budget.
Source: Cochran 1977, chapter 5.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection.quotas import class_quotas, proportional_quotas
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.solvers.unit_rows import spherical_kmeans
from lipt.core.selection.strategy import FEATURES, Strategy
from lipt.core.signals.signals import Signals

# By default. The fewer per cell, the less is left to chance; one alone would make of every
# cell, however accidental, something that has to be kept. More cells cost more.
_CHOSEN_PER_CELL = 2
_MOST_CELLS = 256


def stratified(
    signals: Signals,
    budget: int,
    *,
    num_cells: Annotated[
        int, Field(ge=0), "cells of k-means; 0: one for every 2 to choose, at most 256"
    ] = 0,
    shares: Annotated[
        Literal["equal", "proportional"], "what each cell gives: as many as others, or by its size"
    ] = "equal",
    seed: int,
) -> Selection:
    """Draw `budget` examples, from each cell its share.

    What a small cell cannot give of an equal share is shared by the others. Features that
    all have one direction are one cell: a plain random draw.
    """
    generator = derive_generator(seed, "stratified")
    num_cells = num_cells or default_cells(budget)
    cells_N = spherical_kmeans(signals.features_ND, num_cells, generator=generator).cpu()
    counts_G = torch.bincount(cells_N)
    share_out = class_quotas if shares == "equal" else proportional_quotas
    return unweighted(_draw(cells_N, counts_G, share_out(counts_G.tolist(), budget), generator))


def default_cells(budget: int) -> int:
    """How many cells a budget pays for."""
    return min(_MOST_CELLS, -(-budget // _CHOSEN_PER_CELL))


def _draw(
    cells_N: Tensor, counts_G: Tensor, quotas_G: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    """Random examples of each cell; K int64 on the CPU."""
    # Shuffled, then sorted by cell: the first of each cell are a random draw from it.
    shuffle_N = torch.randperm(len(cells_N), generator=generator)
    order_N = shuffle_N[cells_N[shuffle_N].argsort(stable=True)]
    cells = torch.split(order_N, counts_G.tolist())
    return torch.cat([cell[:quota] for cell, quota in zip(cells, quotas_G, strict=True)])


STRATEGY = Strategy(
    function=stratified,
    summary="random, a share of every cell of the feature space",
    paper='Cochran 1977, "Sampling Techniques", chapter 5',
    cost="N k d",
    needs=FEATURES,
)
