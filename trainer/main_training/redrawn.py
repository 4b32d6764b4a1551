"""Re-drawn random: another random part of the data set every epoch, RS2 without replacement.

Each pass walks through one permutation of all examples in parts of the budget's size, so that
no example comes twice before nearly all have come once. The permutation mixes the classes
evenly, so that every part has close to their shares.

Shapes: N examples of the data set, n of one class, K of the budget.

Source: Okanovic et al. 2024, "Repeated Random Sampling for Minimizing the Time-to-Accuracy of
Learning" (arXiv:2305.18424).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.determinism.seeding import derive_generator
from lipt.common.errors import BudgetError
from lipt.common.subsets.digest import subset_digest
from lipt.trainer.subsets.subset import Subset


class RedrawnRandom:
    """A source of subsets for `fit`: a pure function of the seed and the epoch.

    Args:
        train: the data set that they are drawn from.
        budget: how many examples each epoch has.
        seed: of the permutations.

    Attributes:
        subset: the present epoch's.
        num_epochs: set by `fit`; nothing depends on it.

    Raises:
        BudgetError: the data set does not have as many examples, or the budget is none.
    """

    def __init__(self, train: Dataset, budget: int, seed: int) -> None:
        if not 1 <= budget <= len(train):
            raise BudgetError(
                f"budget {budget} is outside 1..{len(train)}, the training set size. Choose one "
                "that keeps at least one example."
            )
        self._train, self._budget, self._seed = train, budget, seed
        self.num_epochs: int | None = None
        self.subset = self.before_epoch(0)

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the subsets."""
        return {"redrawn": "uniform", "budget": self._budget, "seed": self._seed}

    def before_epoch(self, epoch: int) -> Subset:
        """The subset of an epoch, counted from 0, each example with weight 1."""
        num_parts = len(self._train) // self._budget
        which_pass, part = divmod(epoch, num_parts)
        order_N = mixed_order(self._train.labels_N, self._seed, which_pass)
        start = part * self._budget
        indices_K = order_N[start : start + self._budget].sort().values.numpy()
        weights_K = torch.ones(self._budget).numpy()
        self.subset = Subset(
            indices=indices_K,
            weights=weights_K,
            fingerprint=self._train.fingerprint,
            digest=subset_digest(indices_K, weights_K),
            strategy="redrawn",
        )
        return self.subset


def mixed_order(labels_N: Tensor, seed: int, which_pass: int) -> Tensor:
    """All examples in a random order that mixes the classes evenly.

    The i-th example of a class of n, in random order, is placed at (i + u) / n of the way, with
    one random u in [0, 1) for each class, so that any stretch holds about each class's share.

    Args:
        labels_N: the examples' classes, int64, on the CPU.
        seed: of the order.
        which_pass: counted from 0; each has an order of its own.

    Returns:
        The examples' row numbers, int64.
    """
    generator = derive_generator(seed, "redrawn-order", which_pass)
    shuffled_N = torch.randperm(len(labels_N), generator=generator)
    places_N = torch.empty(len(labels_N), dtype=torch.float64)
    for label in sorted(set(labels_N.tolist())):
        of_class_n = (labels_N[shuffled_N] == label).nonzero().flatten()
        begin = torch.rand((), generator=generator, dtype=torch.float64)
        ranks_n = torch.arange(len(of_class_n), dtype=torch.float64)
        places_N[of_class_n] = (ranks_n + begin) / len(of_class_n)
    return shuffled_N[places_N.argsort(stable=True)]
