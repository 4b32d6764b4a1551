"""Cells of the bench: what is trained on what, and in which order.

Seeds come last, so that a stopped bench has every row of its tables, only with wide intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from lipt.trainer.main_training import Recipe

# Main training that stops early, as in hyper-parameter search, and main training to the end: of
# 20,000 images in 2,500 steps, of 50,000 in 6,000.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "short": {"steps": 1000, "batch_size": 64},
    "converged": {"steps": 6000, "batch_size": 64},
}
_STEPS_OF_20K = 2500
BASELINE = "uniform_per_class"
RANDOM = ("uniform", BASELINE)
# Those that only the bench can make: they need no service.
OWN = ("oracle", "everything", "resampled")
STRATEGIES = (
    *("uniform_per_class", "auto", "oracle", "everything", "resampled"),
    *("facility_location", "ccs", "craig", "dual", "uniform"),
)
# Chosen without labels, which only those that are chosen are then given.
UNLABELLED = ("facility_location:unlabelled", "stratified:unlabelled", "zcore:unlabelled")
# Trained on with soft labels, as much of them as the manifest recommends.
SOFT = ("uniform_per_class:soft", "auto:soft", "everything:soft")
# What decides whether a subset is worth its price, and where.
DECIDING_SETTINGS = ("clean", "noise40", "asymmetric40", "tail50", "duplicates", "all-three")
DECIDING = ("uniform_per_class", "auto", "everything", "resampled", *SOFT)
# Their training sees every row, at any fraction.
ALL_ROWS = ("everything", "everything:soft", "resampled")
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
        """Data that one coordinator serves."""
        return self.data, self.setting, self.seed

    @property
    def needs_service(self) -> bool:
        """Whether its subset comes from a coordinator."""
        return self.strategy not in OWN + RANDOM

    @property
    def unlabelled(self) -> bool:
        """Whether its subset is chosen without labels."""
        return self.strategy in UNLABELLED

    @property
    def soft(self) -> bool:
        """Whether it is trained on with soft labels."""
        return self.strategy in SOFT

    @property
    def baseline(self) -> Cell:
        """The random subset that it is compared with."""
        return replace(self, strategy="uniform" if self.unlabelled else BASELINE, proxy="")

    def matches(self, only: Mapping[str, Sequence[str]]) -> bool:
        """Whether each field named has one of the values given."""
        return all(str(getattr(self, name)) in values for name, values in only.items())


FIELDS = tuple(field.name for field in fields(Cell))


def recipe_of(cell: Cell) -> Recipe:
    """Main training of a cell; the seed is the pipeline's."""
    # Handwritten digits are not to be mirrored.
    augmentation = "crop_flip" if cell.data.startswith("cifar10") else "crop"
    padding = 1 if cell.data == "digits" else 4
    # Compiled for half a minute, then a quarter faster; the smallest images gain nothing.
    compiled = {"compile": cell.data != "digits"}
    given = {"augmentation": augmentation, "padding": padding, "precision": "float32", **compiled}
    recipe = Recipe(**RECIPES[cell.recipe], **given, seed=cell.seed)
    fewer = cell.data == "cifar10-20k" and cell.recipe == "converged"
    return recipe.model_copy(update={"steps": _STEPS_OF_20K}) if fewer else recipe


def proxies_of(strategy: str, proxies: Sequence[str]) -> Sequence[str]:
    """Which of the proxies make a difference to a strategy."""
    if strategy in RANDOM or strategy in OWN:
        return ("",)
    if strategy in UNLABELLED:
        return ("ridge:patches",)
    if strategy in SOFT:
        return ("auto",)
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
    columns = product(seeds, data, recipes, models, settings, fractions, strategies)
    for seed, name, recipe, model, setting, fraction, strategy in columns:
        if strategy in ALL_ROWS and fraction != fractions[0]:
            continue
        if strategy in UNLABELLED and setting != "clean":
            continue
        for proxy in proxies_of(strategy, proxies):
            yield Cell(name, setting, fraction, strategy, proxy, recipe, model, seed)
