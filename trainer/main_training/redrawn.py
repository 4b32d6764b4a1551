"""Redrawn subsets: sources of main training's subsets that need no coordinator.

Each gives other examples before every epoch, so that training takes the steps of a fixed
subset of the same budget and sees more of the data. `redrawn_by_losses` has those that look
at losses.

Shapes: N examples of the data set, K of an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.subsets import subset_digest
from lipt.trainer.redrawing.cycles import Cycles
from lipt.trainer.subsets.subset import Subset


class RedrawnRandom:
    """Random examples with each class's share, re-drawn every epoch: see `Cycles`.

    Args:
        train: what is drawn from.
        budget: examples per epoch.
        seed: of the draws.

    Raises:
        BudgetError: the budget is outside 1..N.
    """

    num_epochs: int | None = None

    def __init__(self, train: Dataset, budget: int, seed: int) -> None:
        self.identity: Mapping[str, Any] = {"redraw": "random", "budget": budget, "seed": seed}
        self._cycles = Cycles(len(train), budget, seed, train.labels_N)
        self._fingerprint = train.fingerprint
        self.subset = self.before_epoch(0)

    def before_epoch(self, epoch: int) -> Subset:
        """The subset of an epoch, counted from 0: a function of the seed and the epoch."""
        ids_K = self._cycles.draw(epoch)
        self.subset = redrawn_subset(
            ids_K, torch.ones(len(ids_K)), self._fingerprint, "redrawn_random"
        )
        return self.subset


def redrawn_subset(
    ids_K: Tensor,
    weights_K: Tensor,
    fingerprint: str,
    strategy: str,
    manifest: Mapping[str, Any] | None = None,
) -> Subset:
    """A subset of examples in any order."""
    ids_K, order_K = ids_K.sort()
    indices, weights = ids_K.numpy(), weights_K[order_K].numpy()
    digest = subset_digest(indices, weights)
    return Subset(indices, weights, fingerprint, digest, strategy, manifest or {})
