"""Ways to redraw, by name: what `lipt train --redraw` and its options stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from lipt.common.config.values import validate
from lipt.common.data import Dataset
from lipt.common.errors import UnknownNameError
from lipt.trainer.main_training.examples import SubsetSource
from lipt.trainer.main_training.redrawn import RedrawnRandom
from lipt.trainer.main_training.redrawn_by_losses import RedrawnInfoBatch, RedrawnStale
from lipt.trainer.redrawing.infobatch import InfoBatchOptions
from lipt.trainer.redrawing.stale_losses import StaleOptions


class RandomOptions(BaseModel):
    """There is nothing to say about how random examples are drawn."""

    model_config = ConfigDict(frozen=True, extra="forbid")


RedrawOptions = RandomOptions | StaleOptions | InfoBatchOptions

_OPTIONS: Mapping[str, type[RedrawOptions]] = {
    "random": RandomOptions,
    "stale": StaleOptions,
    "infobatch": InfoBatchOptions,
}


@dataclass(frozen=True)
class Redraw:
    """A way to draw other examples for every epoch."""

    options: RedrawOptions

    @classmethod
    def named(cls, name: str, options: Mapping[str, object] | None = None) -> Redraw:
        """The way of this name: random, stale or infobatch.

        Raises:
            UnknownNameError: there is no such way.
            ConfigError: it has no such option, or not with this value.
        """
        if name not in _OPTIONS:
            raise UnknownNameError(
                f"there is no way {name!r} to redraw. Choose from: {', '.join(_OPTIONS)}."
            )
        return cls(validate(_OPTIONS[name], options or {}))

    def source(self, train: Dataset, budget: int, seed: int) -> SubsetSource:
        """Where main training has its subsets from; a new one for every training.

        Raises:
            BudgetError: the budget is outside 1..N.
        """
        if isinstance(self.options, StaleOptions):
            return RedrawnStale(train, budget, seed, self.options)
        if isinstance(self.options, InfoBatchOptions):
            return RedrawnInfoBatch(train, budget, seed, self.options)
        return RedrawnRandom(train, budget, seed)
