"""CREST: mini-batch coresets, each chosen from a random set of examples not yet learned.

One coreset of the whole data set stops representing it within a few steps of training. So each
mini-batch represents its own random set by facility location on the distance of the errors e. Of
examples with a loss below `learned_loss` only as many stay as the budget needs.

Our choices: mini-batches share no examples. Random sets are stratified and hold at least four times
the mini-batch, at most 8,192. Every example is in one set before any is in a second.

Shapes: N examples, n of them, C classes, G groups that share the budget (the classes, or one of
all), M in a pool, R in a random set, B in a mini-batch, K budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection.pairs import proximity
from lipt.core.selection.selection import Selection
from lipt.core.selection.solvers.representatives import fit_scale, lazy_greedy, store_levels
from lipt.core.selection.strategy import CLASSES, Cost, Growth, built_in
from lipt.core.selection.vectors import Vectors
from lipt.core.signals.views import LastLayer
from lipt.data.groups import class_shares, mixed_evenly

_MAX_BATCH_SIZE = 4096
_MAX_SET_SIZE = 2 * _MAX_BATCH_SIZE
_MIN_SETS_PER_BATCH = 4


@built_in(
    summary="coresets of random sets of what is not learned yet",
    paper='Yang et al. 2023, "Towards Sustainable Learning" (arXiv:2306.01244)',
    cost=Cost(Growth.ITERATIONS, "N + k C"),
    returns_weights=True,
    rechecks=True,
    kinds=CLASSES,
    is_random=True,
)
def crest(
    layer: LastLayer,
    budget: int,
    *,
    random_fraction: Annotated[
        float, Field(gt=0.0, le=1.0), "share of the examples not yet learned in a random set"
    ] = 0.01,
    batch_size: Annotated[
        int, Field(ge=1, le=_MAX_BATCH_SIZE), "examples chosen from each random set"
    ] = 128,
    learned_loss: Annotated[float, Field(ge=0.0), "a smaller loss counts as learned"] = 0.1,
    balanced: bool,
    seed: int,
) -> Selection:
    """Choose mini-batch after mini-batch, each as the coreset of a random set.

    Weights are cluster sizes, scaled to sum to the pool. A pool no larger than the budget is kept
    whole. Balanced, that holds for each class with its own pool and quota.
    """
    labels_N, losses_N = layer.labels_N, own_losses(layer)
    indices, weights, groups = [], [], []
    shares = class_shares(labels_N if balanced else torch.zeros_like(labels_N), budget)
    for label, rows_n, quota in shares:
        pool_M = rows_n[unlearned(losses_N[rows_n], quota, learned_loss)]
        if len(pool_M) == quota:
            indices.append(pool_M)
            weights.append(torch.ones_like(pool_M, dtype=torch.float64))
            continue
        share = math.ceil(min(batch_size, budget) * quota / budget)
        size = max(math.ceil(random_fraction * len(pool_M)), _MIN_SETS_PER_BATCH * share)
        generator = derive_generator(seed, "random sets", label)
        sets = RandomSets(pool_M, labels_N, min(size, _MAX_SET_SIZE), generator)
        groups.append((sets, quota, len(pool_M) / quota))
    for numbers_G in batch_shares([quota for _, quota, _ in groups], batch_size):
        for (sets, _, represented), number in zip(groups, numbers_G, strict=True):
            if not number:
                continue
            set_R = sets.draw()
            chosen_B, sizes_B = batch_coreset(layer.errors_NC[set_R].float(), number)
            sets.put_back(set_R, without=chosen_B)
            indices.append(set_R[chosen_B])
            weights.append(sizes_B.double() * (number / len(set_R) * represented))
    return Selection(torch.cat(indices), torch.cat(weights).float())


def own_losses(layer: LastLayer) -> Tensor:
    """The cross-entropy of each example; N float64."""
    rows_N = torch.arange(len(layer), device=layer.labels_N.device)
    # The own class's error is p - 1, which keeps its digits where p is almost 1.
    own_errors_N = layer.errors_NC[rows_N, layer.labels_N].double()
    return -torch.log1p(own_errors_N.clamp(-1.0, 0.0))


def unlearned(losses_n: Tensor, budget: int, learned_loss: float) -> Tensor:
    """Examples not yet learned, at least `budget` of the highest loss; M, ascending."""
    num_unlearned = int((losses_n >= learned_loss).sum())
    by_loss_n = losses_n.argsort(descending=True, stable=True)
    return by_loss_n[: max(budget, num_unlearned)].sort().values


def batch_coreset(errors_RC: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    """Rows whose errors are closest to all, in the order of choice, and cluster sizes."""
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


def batch_shares(quotas_G: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Each group's share of every mini-batch, proportional to its quota; the last is shorter."""
    groups_K = torch.arange(len(quotas_G)).repeat_interleave(torch.tensor(quotas_G).long())
    mixed_K = groups_K[mixed_evenly(groups_K)]
    for taken in range(0, len(mixed_K), batch_size):
        yield mixed_K[taken : taken + batch_size].bincount(minlength=len(quotas_G)).tolist()


class RandomSets:
    """Stratified random sets of a pool; examples put back are shuffled when it runs out."""

    def __init__(
        self, pool_M: Tensor, labels_N: Tensor, set_size: int, generator: torch.Generator
    ) -> None:
        self._generator = generator
        self._labels_N = labels_N
        self._size = set_size
        self._ahead = self._shuffled(pool_M)
        self._back: list[Tensor] = []

    def draw(self) -> Tensor:
        """The next set, smaller than the others only if no more examples are left."""
        if len(self._ahead) < self._size and self._back:
            self._ahead = torch.cat([self._ahead, self._shuffled(torch.cat(self._back))])
            self._back = []
        drawn_R, self._ahead = self._ahead[: self._size], self._ahead[self._size :]
        return drawn_R

    def put_back(self, set_R: Tensor, *, without: Tensor) -> None:
        """Return a set's examples to the pool, except those at some positions."""
        stays_R = torch.ones(len(set_R), dtype=torch.bool, device=set_R.device)
        stays_R[without] = False
        self._back.append(set_R[stays_R])

    def _shuffled(self, ids: Tensor) -> Tensor:
        order = torch.randperm(len(ids), generator=self._generator).to(ids.device)
        return ids[order][mixed_evenly(self._labels_N[ids[order]])]
