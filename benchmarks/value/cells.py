"""Cells of the bench: what is trained on what, and in which order.

Seeds come last, so that a stopped bench has every row of its tables, only with wide intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lipt.trainer.main_training import Recipe

# Main training that stops early, as in hyper-parameter search, and main training to the end:
# 95% right on the subset and more.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "short": {"steps": 1000, "batch_size": 64},
    "converged": {"steps": 6000, "batch_size": 64},
}
RANDOM = ("uniform", "uniform_per_class")
# Those that only the bench can make: they need no service.
OWN = ("oracle", "everything", "redrawn")
STRATEGIES = (
    *("uniform_per_class", "auto", "oracle", "everything", "redrawn"),
    *("facility_location", "ccs", "craig", "dual", "uniform"),
)
PROXIES = ("auto", "soup", "ridge:learners", "ridge:patches")


@dataclass(frozen=True)
class Cell:
    """One main training.

    proxy: what the strategy's signals are computed with; empty where it needs none.
    """

    data: str
    setting: str
    fraction: float
    strategy: str
    proxy: str
    recipe: str
    model: str
    seed: int

    @property
    def pipeline(self) -> tuple[str, str, int]:
        """What one coordinator serves."""
        return self.data, self.setting, self.seed

    @property
    def needs_service(self) -> bool:
        """Whether its subset comes from a coordinator."""
        return self.strategy not in OWN + RANDOM

    def matches(self, only: Mapping[str, Sequence[str]]) -> bool:
        """Whether each field named has one of the values given."""
        return all(str(getattr(self, name)) in values for name, values in only.items())


FIELDS = tuple(field.name for field in fields(Cell))


def recipe_of(cell: Cell) -> Recipe:
    """Main training of a cell; the seed is the pipeline's."""
    # Handwritten digits are not to be mirrored.
    augmentation = "crop_flip" if cell.data == "cifar10-jpeg" else "crop"
    padding = 1 if cell.data == "digits" else 4
    given = {"augmentation": augmentation, "padding": padding, "precision": "float32"}
    return Recipe(**RECIPES[cell.recipe], **given, seed=cell.seed)


def proxies_of(strategy: str, proxies: Sequence[str]) -> Sequence[str]:
    """Which of the proxies make a difference to a strategy."""
    if strategy in RANDOM or strategy in OWN:
        return ("",)
    if strategy == "auto":
        return [proxy for proxy in proxies if proxy != "soup"]
    # What DUAL looks at is the learners on their way.
    return ("soup",) if strategy == "dual" else [proxy for proxy in proxies if proxy != "auto"]


def all_cells(
    *,
    data: Sequence[str],
    settings: Sequence[str],
    fractions: Sequence[float],
    strategies: Sequence[str],
    proxies: Sequence[str],
    recipes: Sequence[str],
    models: Sequence[str],
    seeds: Sequence[int],
) -> Iterator[Cell]:
    """Every combination that is a training of its own, seed by seed."""
    for seed in seeds:
        for name in data:
            for recipe in recipes:
                for model in models:
                    for setting in settings:
                        for fraction in fractions:
                            for strategy in strategies:
                                for proxy in proxies_of(strategy, proxies):
                                    if strategy == "everything" and fraction != fractions[0]:
                                        continue
                                    yield Cell(
                                        name,
                                        setting,
                                        fraction,
                                        strategy,
                                        proxy,
                                        recipe,
                                        model,
                                        seed,
                                    )
