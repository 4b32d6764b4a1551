"""Resampling every epoch: other random examples, without replacement across epochs (RS2).

Training takes as many steps as on a fixed subset of the same budget, and uses more of the data.
`RepeatedRandomSampler` and `fit` share these draws.

Shapes: N examples, K budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.determinism import derive_generator
from lipt.common.subsets import require_budget, subset_digest
from lipt.trainer.subsets.subset import Subset


class Cycles:
    """Random examples in every epoch, without replacement across epochs.

    Epochs take consecutive parts of a permutation. An epoch that reaches its end continues in the
    next permutation and skips its own examples. (The authors' code repeats the old permutation's
    start.) With `labels_N`, every epoch is stratified by class.
    Source: Okanovic et al. 2024, "Repeated Random Sampling for Minimizing the Time-to-Accuracy of
    Learning" (arXiv:2305.18424), RS2 without replacement.
    """

    def __init__(
        self, num_examples: int, budget: int, seed: int, labels_N: Tensor | None = None
    ) -> None:
        require_budget(budget, num_examples)
        if labels_N is not None and len(labels_N) != num_examples:
            raise ValueError(f"{len(labels_N)} labels for {num_examples} examples")
        self._num_examples, self.budget, self._seed = num_examples, budget, seed
        self._labels_N = labels_N
        # The last cycle and its order.
        self._known = -1, torch.empty(0, dtype=torch.int64)

    def draw(self, epoch: int) -> Tensor:
        """Return an epoch's K distinct row numbers, int64."""
        cycle, start = divmod(epoch * self.budget, self._num_examples)
        here = self._order(cycle)[start : start + self.budget]
        missing = self.budget - len(here)
        return torch.cat([here, self._order(cycle + 1)[:missing]]) if missing else here

    def _order(self, cycle: int) -> Tensor:
        known, order_N = self._known
        if known != cycle:
            # A shared epoch reorders only a cycle's first K examples. So the end of a cycle of
            # at least two budgets does not depend on earlier cycles.
            first = max(cycle - 1, 0) if 2 * self.budget <= self._num_examples else 0
            if not first <= known < cycle:
                known, order_N = first, self._permutation(first)
            for following in range(known + 1, cycle + 1):
                order_N = self._following(order_N, following)
            self._known = cycle, order_N
        return order_N

    def _following(self, order_N: Tensor, cycle: int) -> Tensor:
        next_N = self._permutation(cycle)
        num_left = cycle * self._num_examples % self.budget
        if not num_left:
            return next_N
        lent = next_N[~torch.isin(next_N, order_N[-num_left:])][: self.budget - num_left]
        return torch.cat([lent, next_N[~torch.isin(next_N, lent)]])

    def _permutation(self, cycle: int) -> Tensor:
        generator = derive_generator(self._seed, "redrawing-cycle", cycle)
        order_N = torch.randperm(self._num_examples, generator=generator)
        return order_N if self._labels_N is None else _spread(order_N, self._labels_N, generator)


def _spread(order_N: Tensor, labels_N: Tensor, generator: torch.Generator) -> Tensor:
    """Spread each class evenly over an order; the order within a class stays.

    Example j of a class of n goes to position (j + u) / n, with one random u in [0, 1) per class.
    """
    classes, class_of_N = torch.unique(labels_N[order_N], return_inverse=True)
    offsets_C = torch.rand(len(classes), generator=generator, dtype=torch.float64)
    counts_C = torch.bincount(class_of_N, minlength=len(classes))
    by_class_N = class_of_N.argsort(stable=True)
    firsts_C = counts_C.cumsum(0) - counts_C
    sorted_class_N = class_of_N[by_class_N]
    ranks_N = torch.arange(len(order_N)) - firsts_C[sorted_class_N]
    places_N = (ranks_N + offsets_C[sorted_class_N]) / counts_C[sorted_class_N]
    return order_N[by_class_N[places_N.argsort(stable=True)]]


class RepeatedRandom:
    """Source for `fit`: other examples in every epoch, for the steps of a subset of `budget`.

    Args:
        train: the data set; every epoch has each class's share.
        budget: number of examples.
        seed: seed of the draws.

    Raises:
        BudgetError: `budget` is not one of 1 to the number of examples.
    """

    def __init__(self, train: Dataset, budget: int, seed: int) -> None:
        self.identity: Mapping[str, Any] = {"resample": "random", "budget": budget, "seed": seed}
        self.num_epochs: int | None = None
        self._cycles = Cycles(len(train), budget, seed, train.labels_N)
        self._fingerprint = train.fingerprint
        self.subset = self.before_epoch(0)

    def before_epoch(self, epoch: int) -> Subset:
        """Return the subset of an epoch, counted from 0."""
        indices = self._cycles.draw(epoch).sort().values.numpy()
        weights = np.ones(len(indices), np.float32)
        digest = subset_digest(indices, weights)
        self.subset = Subset(indices, weights, self._fingerprint, digest, "resampled_random")
        return self.subset
