"""Sources of main training's subsets that draw other examples before every epoch.

Training takes the steps of a fixed subset of the same budget and sees more of the data. Losses are
those of main training's own steps, and lie in its checkpoint.

Shapes: N examples of the data set, K of an epoch, M trained on in an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from lipt.common.config.values import validate
from lipt.common.data import Dataset
from lipt.common.determinism import derive_generator
from lipt.common.errors import UnknownNameError
from lipt.common.subsets import require_budget, subset_digest
from lipt.trainer.main_training.examples import ABSOLUTE_WEIGHTS, SubsetSource
from lipt.trainer.resampling.draws import (
    Cycles,
    InfoBatchOptions,
    LastLosses,
    StaleOptions,
    draw_by_losses,
    draw_pruned,
)
from lipt.trainer.subsets.subset import Subset


class RedrawnRandom:
    """Random examples with each class's share, redrawn every epoch: see `Cycles`.

    Args:
        train: the data set.
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
        ids_K, weights_K = self._cycles.draw(epoch), torch.ones(self.identity["budget"])
        self.subset = redrawn_subset(ids_K, weights_K, self._fingerprint, "redrawn_random")
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


class _RedrawnByLosses:
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
        self.subset = self.before_epoch(0)

    def before_epoch(self, epoch: int) -> Subset:
        """The subset of an epoch, counted from 0, by the losses so far."""
        generator = derive_generator(self._seed, f"redrawing-{self._name}", epoch)
        ids_K, weights_K, manifest = self._draw(epoch, generator)
        strategy = f"redrawn_{self._name}"
        self.subset = redrawn_subset(ids_K, weights_K, self._fingerprint, strategy, manifest)
        return self.subset

    def _draw(
        self, epoch: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        raise NotImplementedError

    def update(self, ids_M: Tensor, losses_M: Tensor) -> None:
        """Take an epoch's losses."""
        self._losses.note(ids_M, losses_M)
        self._losses.settle()

    def state_dict(self) -> dict[str, Tensor]:
        """The losses so far."""
        return self._losses.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with these losses."""
        self._losses.load_state_dict(state)


class RedrawnStale(_RedrawnByLosses):
    """The examples of a random pool with the highest last losses: see `draw_by_losses`.

    Arguments and errors are those of `RedrawnRandom`, and `options`.
    """

    def __init__(
        self, train: Dataset, budget: int, seed: int, options: StaleOptions | None = None
    ) -> None:
        self._options = options or StaleOptions()
        super().__init__("stale", train, budget, seed, self._options)

    def _draw(
        self,
        epoch: int,  # noqa: ARG002 - InfoBatch's draw depends on it
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        ids_K = draw_by_losses(self._losses.known_N, self.budget, self._options, generator)
        return ids_K, torch.ones(len(ids_K)), {}


class RedrawnInfoBatch(_RedrawnByLosses):
    """All but a share of the easy examples: see `draw_pruned`.

    The budget decides the number of steps, the losses the size of each epoch. Arguments and errors
    are those of `RedrawnRandom`, and `options`.
    """

    def __init__(
        self, train: Dataset, budget: int, seed: int, options: InfoBatchOptions | None = None
    ) -> None:
        self._options = options or InfoBatchOptions()
        super().__init__("infobatch", train, budget, seed, self._options)

    def _draw(
        self, epoch: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        prune = self._options.share(epoch, self.num_epochs)
        ids_K, weights_N = draw_pruned(self._losses.known_N, prune, generator)
        # Their mean is above 1: fewer steps then move the model as far.
        return ids_K, weights_N[ids_K], {ABSOLUTE_WEIGHTS: True}


class RandomOptions(BaseModel):
    """Random examples have no options."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_OPTIONS: Mapping[str, type[RandomOptions | StaleOptions | InfoBatchOptions]] = {
    "random": RandomOptions,
    "stale": StaleOptions,
    "infobatch": InfoBatchOptions,
}


def redraw(
    name: str, options: Mapping[str, object] | None = None
) -> Callable[[Dataset, int, int], SubsetSource]:
    """A function of data set, budget and seed that makes the source of `lipt train --redraw`."""
    if name not in _OPTIONS:
        raise UnknownNameError(
            f"there is no way {name!r} to redraw. Choose from: {', '.join(_OPTIONS)}."
        )
    settings = validate(_OPTIONS[name], options or {})

    def source(train: Dataset, budget: int, seed: int) -> SubsetSource:
        if isinstance(settings, StaleOptions):
            return RedrawnStale(train, budget, seed, settings)
        if isinstance(settings, InfoBatchOptions):
            return RedrawnInfoBatch(train, budget, seed, settings)
        return RedrawnRandom(train, budget, seed)

    return source
