"""CREST: mini-batch coresets, each chosen from a random set, of what is not learned yet.

One coreset of the whole data set stops to stand for it within a few steps of training. So
many small ones are chosen: a random set is drawn, and of it the mini-batch whose gradients
represent the set's (facility location by the distance of the errors e, which is how the
paper approximates gradients), until the mini-batches fill the budget. Examples with a loss
below `learned_loss` have next to no gradient and are left out.

When the weights have moved too far for the subset, `lipt.coordinator.signals.quadratic_model` says
so, and re-selection asks it.

Four things that the paper leaves to its training loop are decided here:

- The ids of all mini-batches are distinct: what was chosen leaves the sets to come.
- Every example of the pool is in one random set before any is in a second one.
- A random set holds at least four times the mini-batch, or there would be nothing to choose
  among a few hundred examples; and at most 8,192.
- "Learned" is judged by the weights that are selected on, not by the last epochs. Where
  fewer examples than the budget are left, those of the highest loss come back.

Shapes: N examples, C classes, M in the pool, R in a random set, B in a mini-batch, K budget.
Source: Yang et al. 2023 (arXiv:2306.01244), sections 4.1 and 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism.seeding import derive_generator
from lipt.coordinator.selection.gradients.pairs import proximity
from lipt.coordinator.selection.gradients.vectors import Vectors
from lipt.coordinator.selection.selection import Selection, unweighted
from lipt.coordinator.selection.solvers.lazy import lazy_greedy
from lipt.coordinator.selection.solvers.levels import fit_scale, store_levels
from lipt.coordinator.selection.strategy import Strategy
from lipt.coordinator.signals.signals import Signals

_MAX_BATCH_SIZE = 4096
_MAX_SET_SIZE = 2 * _MAX_BATCH_SIZE
_MIN_SETS_PER_BATCH = 4


def crest(
    signals: Signals,
    budget: int,
    *,
    random_fraction: Annotated[
        float, Field(gt=0.0, le=1.0), "share of the examples not yet learned in a random set"
    ] = 0.01,
    batch_size: Annotated[
        int, Field(ge=1, le=_MAX_BATCH_SIZE), "examples chosen from each random set"
    ] = 128,
    learned_loss: Annotated[float, Field(ge=0.0), "a smaller loss counts as learned"] = 0.1,
    seed: int,
) -> Selection:
    """Choose mini-batch after mini-batch, each as the coreset of a random set.

    The last mini-batch is what is left of the budget.

    Returns:
        Weights are the cluster sizes, with a mean of 1 in every mini-batch, times M / K:
        they sum to the number of examples in the pool, for which they stand. Where the pool
        is no larger than the budget, all of it with weight 1.
    """
    pool_M = unlearned(signals, budget, learned_loss)
    if len(pool_M) == budget:
        return unweighted(pool_M)
    size = max(
        math.ceil(random_fraction * len(pool_M)), _MIN_SETS_PER_BATCH * min(batch_size, budget)
    )
    sets = RandomSets(pool_M, min(size, _MAX_SET_SIZE), seed)
    indices, weights = [], []
    for number in batch_sizes(budget, batch_size):
        set_R = sets.draw()
        chosen_B, sizes_B = batch_coreset(signals.errors_NC[set_R].float(), number)
        sets.put_back(set_R, without=chosen_B)
        indices.append(set_R[chosen_B])
        weights.append(sizes_B.double() * (number / len(set_R)))
    weights_K = torch.cat(weights) * (len(pool_M) / budget)
    return Selection(torch.cat(indices), weights_K.float())


def unlearned(signals: Signals, budget: int, learned_loss: float) -> Tensor:
    """The examples that are not learned, or the `budget` of highest loss; M ids, ascending."""
    rows_N = torch.arange(len(signals), device=signals.labels_N.device)
    # e of the own class is p - 1, which keeps its digits where p is almost 1.
    own_errors_N = signals.errors_NC[rows_N, signals.labels_N].double()
    losses_N = -torch.log1p(own_errors_N.clamp(-1.0, 0.0))
    num_unlearned = int((losses_N >= learned_loss).sum())
    by_loss_N = losses_N.argsort(descending=True, stable=True)
    return by_loss_N[: max(budget, num_unlearned)].sort().values


def batch_coreset(errors_RC: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    """The examples whose errors are closest to those of all, and how many each stands for.

    Returns:
        Positions in the order of choice, and the sizes of their clusters, which sum to R.
        A chosen example belongs to itself, even where another one is its equal.
    """
    num_rows = len(errors_RC)
    if num_rows == batch_size:
        everyone_R = torch.arange(num_rows, device=errors_RC.device)
        return everyone_R, torch.ones_like(everyone_R)
    similarity = proximity(Vectors(errors_RC))
    levels = store_levels(similarity, fit_scale(similarity, "24-bit"))
    chosen_B = lazy_greedy(levels, batch_size)
    clusters_R = levels.rows(chosen_B).argmax(dim=0)
    clusters_R[chosen_B] = torch.arange(batch_size, device=errors_RC.device)
    return chosen_B, clusters_R.bincount(minlength=batch_size)


def batch_sizes(budget: int, batch_size: int) -> Iterator[int]:
    """Full mini-batches, and a last one of what is left."""
    for taken in range(0, budget, batch_size):
        yield min(batch_size, budget - taken)


class RandomSets:
    """Random sets of a pool from which examples are taken for good.

    The pool is shuffled and cut into sets; when it runs out, what was put back is shuffled.
    """

    def __init__(self, pool_M: Tensor, set_size: int, seed: int) -> None:
        self._generator = derive_generator(seed, "random sets")
        self._size = set_size
        self._ahead = self._shuffled(pool_M)
        self._back: list[Tensor] = []

    def draw(self) -> Tensor:
        """The next set; smaller than the others only where no more examples are left."""
        if len(self._ahead) < self._size and self._back:
            self._ahead = torch.cat([self._ahead, self._shuffled(torch.cat(self._back))])
            self._back = []
        drawn_R, self._ahead = self._ahead[: self._size], self._ahead[self._size :]
        return drawn_R

    def put_back(self, set_R: Tensor, *, without: Tensor) -> None:
        """Let a set's examples come again, except those at some positions."""
        stays_R = torch.ones(len(set_R), dtype=torch.bool, device=set_R.device)
        stays_R[without] = False
        self._back.append(set_R[stays_R])

    def _shuffled(self, ids: Tensor) -> Tensor:
        order = torch.randperm(len(ids), generator=self._generator)
        return ids[order.to(ids.device)]


STRATEGY = Strategy(
    function=crest,
    summary="mini-batch coresets of random sets of what is not learned yet",
    paper=(
        'Yang et al. 2023, "Towards Sustainable Learning: Coresets for Data-efficient Deep '
        'Learning" (arXiv:2306.01244)'
    ),
    cost="N + k C",
    returns_weights=True,
    rechecks=True,
)
