"""Subsets redrawn by losses: what main training's own steps showed decides the next epoch.

No example goes through the model for it once more. The losses are a source's state: they lie
in main training's checkpoint.

Shapes: N examples of the data set, K of an epoch, M trained on in an epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel
from torch import Generator, Tensor

from lipt.common.data import Dataset
from lipt.common.determinism import derive_generator
from lipt.common.subsets import require_budget
from lipt.trainer.main_training.examples import ABSOLUTE_WEIGHTS
from lipt.trainer.main_training.redrawn import redrawn_subset
from lipt.trainer.redrawing.infobatch import InfoBatchOptions, draw_pruned
from lipt.trainer.redrawing.last_losses import LastLosses
from lipt.trainer.redrawing.stale_losses import StaleOptions, draw_by_losses
from lipt.trainer.subsets.subset import Subset


class _RedrawnByLosses(ABC):
    """A source that knows each example's last loss."""

    num_epochs: int | None = None

    def __init__(
        self, name: str, train: Dataset, budget: int, seed: int, options: BaseModel
    ) -> None:
        require_budget(budget, len(train))
        self.budget = budget
        asked = {"redraw": name, "budget": budget, "seed": seed}
        self.identity: Mapping[str, Any] = asked | options.model_dump()
        self._name, self._seed, self._fingerprint = name, seed, train.fingerprint
        self._losses = LastLosses(len(train))

    @abstractmethod
    def before_epoch(self, epoch: int) -> Subset:
        """The subset of an epoch, counted from 0, by the losses that are known."""

    def update(self, ids_M: Tensor, losses_M: Tensor) -> None:
        """Take an epoch's losses."""
        self._losses.note(ids_M, losses_M)
        self._losses.settle()

    def state_dict(self) -> dict[str, Tensor]:
        """The losses that are known."""
        return self._losses.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with these losses."""
        self._losses.load_state_dict(state)

    def _generator(self, epoch: int) -> Generator:
        return derive_generator(self._seed, f"redrawing-{self._name}", epoch)


class RedrawnStale(_RedrawnByLosses):
    """Of a random pool, those with the highest losses that are known: see `draw_by_losses`.

    Args:
        train: what is drawn from.
        budget: examples per epoch.
        seed: of the draws.
        options: the pool, and what is left out of it.

    Raises:
        BudgetError: the budget is outside 1..N.
    """

    def __init__(
        self, train: Dataset, budget: int, seed: int, options: StaleOptions | None = None
    ) -> None:
        self._options = options or StaleOptions()
        super().__init__("stale", train, budget, seed, self._options)
        self.subset = self.before_epoch(0)

    def before_epoch(self, epoch: int) -> Subset:
        """The subset of an epoch, counted from 0, by the losses that are known."""
        ids_K = draw_by_losses(
            self._losses.known_N, self.budget, self._options, self._generator(epoch)
        )
        self.subset = redrawn_subset(
            ids_K, torch.ones(len(ids_K)), self._fingerprint, "redrawn_stale"
        )
        return self.subset


class RedrawnInfoBatch(_RedrawnByLosses):
    """All but a share of the easy examples: see `draw_pruned`.

    How many examples an epoch has, the losses decide. The budget decides for how many steps
    is trained: those of a fixed subset of that size. Where `num_epochs` says that the end is
    near, epochs are on everything.

    Args:
        train: what is drawn from.
        budget: examples of the fixed subset whose steps are taken.
        seed: of the draws.
        options: what is left out, and until when.

    Raises:
        BudgetError: the budget is outside 1..N.
    """

    def __init__(
        self, train: Dataset, budget: int, seed: int, options: InfoBatchOptions | None = None
    ) -> None:
        self._options = options or InfoBatchOptions()
        super().__init__("infobatch", train, budget, seed, self._options)
        self.subset = self.before_epoch(0)

    def before_epoch(self, epoch: int) -> Subset:
        """The subset of an epoch, counted from 0, by the losses that are known."""
        prune = self._options.prune if self._options.prunes(epoch, self.num_epochs) else 0.0
        ids_K, weights_N = draw_pruned(self._losses.known_N, prune, self._generator(epoch))
        # Their mean is above 1, and is to be: fewer steps then move the model as far.
        manifest = {ABSOLUTE_WEIGHTS: True}
        self.subset = redrawn_subset(
            ids_K, weights_N[ids_K], self._fingerprint, "redrawn_infobatch", manifest
        )
        return self.subset
