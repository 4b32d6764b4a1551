"""Plan of a comparison: what is trained, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lipt.common.config.values import merge
from lipt.common.determinism import derive_seed
from lipt.trainer.comparison.baselines import BASELINES, EVERYTHING, FIXED, REDRAWN
from lipt.trainer.comparison.trial import Cell
from lipt.trainer.main_training import Recipe


@dataclass(frozen=True)
class Plan:
    """What is compared.

    recipe: of every training; its steps are the same for all, its seed is decided here.
        Without `steps`, they are its epochs on the largest subset.
    run_overrides: settings of the runs, nested as in `RunConfig`.
    proxy: what judges the examples, as in `client.subset`; each strategy's default where None.
    baselines: what the strategies are compared with, of `BASELINES`.
    every: epochs after which strategies choose again, on the weights of that moment, and a
        random subset is drawn again beside them; 0 for subsets that stay.
    training_seeds: how many trainings each seed of the pipeline has, with initial weights
        and orders that all strategies share.
    """

    strategies: tuple[str, ...]
    fractions: tuple[float, ...]
    seeds: tuple[int, ...]
    model: str
    recipe: Recipe
    run_overrides: Mapping[str, Any] = field(default_factory=dict)
    baselines: tuple[str, ...] = BASELINES
    every: int = 0
    training_seeds: int = 1
    proxy: str | None = None

    def overrides(self, seed: int) -> dict[str, Any]:
        """The settings of a seed's run."""
        return merge(self.run_overrides, {"model": self.model, "seed": seed})

    def asked(self) -> dict[str, Any]:
        """What every subset is asked for besides its strategy and size."""
        return {} if self.proxy is None else {"proxy": self.proxy}

    def all_strategies(self) -> tuple[str, ...]:
        """The fixed kinds of random first, then what was asked for, each once."""
        fixed = [name for name in FIXED if name in self.baselines]
        return tuple(dict.fromkeys((*fixed, *self.strategies)))

    def cells(self, seed: int) -> Iterator[Cell]:
        """What is trained for a seed: everything once, the rest for each fraction."""
        for repeat in range(self.training_seeds):
            if EVERYTHING in self.baselines:
                yield Cell(seed, EVERYTHING, 1.0, 0, repeat)
            for fraction in self.fractions:
                for strategy, every in self._within_fraction():
                    yield Cell(seed, strategy, fraction, every, repeat)

    def _within_fraction(self) -> list[tuple[str, int]]:
        strategies = self.all_strategies()
        found = [(name, 0) for name in strategies if name in FIXED]
        if REDRAWN in self.baselines:
            found += [(REDRAWN, every) for every in sorted({1, self.every} - {0})]
        return found + [(name, self.every) for name in strategies if name not in FIXED]


def training_seed(seed: int, repeat: int) -> int:
    """The recipe's seed of one of the trainings of a pipeline seed; the first has that very one."""
    return seed if repeat == 0 else derive_seed(seed, "compare-training", repeat)
