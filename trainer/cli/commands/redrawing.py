"""Examples for `lipt train --redraw`: a source of other ones for every epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lipt.common.subsets import resolve_budget
from lipt.trainer.cli.arguments.overrides import parse_options
from lipt.trainer.main_training.redrawing import Redraw

if TYPE_CHECKING:
    from lipt.common.data import Dataset
    from lipt.trainer.cli.arguments.choice import Choice
    from lipt.trainer.main_training.examples import SubsetSource


def redrawing_of(choice: Choice) -> Callable[[Dataset, int], SubsetSource] | None:
    """Makes a source of the data to train on and a seed; None where nothing is redrawn.

    Raises:
        ConfigError: an option does not exist, or is out of range.
    """
    if choice.redraw is None:
        return None
    redraw = Redraw.named(choice.redraw, parse_options(choice.options or []))

    def make(train: Dataset, seed: int) -> SubsetSource:
        budget = resolve_budget(
            fraction=choice.fraction, budget=choice.budget, num_examples=len(train)
        )
        return redraw.source(train, budget, seed)

    return make
