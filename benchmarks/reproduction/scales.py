"""Scales: the same tables on other data, models and budgets of compute.

cpu    resnet8 on cifar10-jpeg, for two cores; no more than two hours a table
gpu    ResNet-18 and the paper's settings, on one card
tiny   digits, for the tests of this bench
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lipt.trainer.main_training import Recipe

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@dataclass(frozen=True)
class Scale:
    """What a table is measured on.

    train, test: sources as `--data` takes them, of photographs in `data_folder`.
    run: settings of every run, nested as in `RunConfig`; the paper's where they say nothing.
    recipe: main training of every row; with `epochs`, as many steps as on the row's fraction.
    every: epochs on the subset between two selections, where there are several.
    one_model, ten_models: the ordinary warm-ups that the paper compares with, as an option.
    fractions: in place of a table's own, where these make no sense on so few examples.
    num_workers, threads: processes, and how many threads each of them computes with.
    """

    name: str
    train: str
    test: str
    model: str
    device: str
    run: Mapping[str, Any]
    recipe: Mapping[str, Any]
    every: int
    one_model: str
    ten_models: str
    num_workers: int
    threads: int = 1
    fractions: Mapping[float, float] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def recipe_for(self, fraction: float, num_examples: int, seed: int) -> Recipe:
        """Main training of a row, with as many steps as all rows of its fraction have."""
        recipe = Recipe(**self.recipe, seed=seed)
        if recipe.steps is not None:
            return recipe
        steps = recipe.num_steps(math.ceil(fraction * num_examples))
        return recipe.model_copy(update={"steps": steps})

    @property
    def same_steps(self) -> bool:
        """Whether rows of all fractions have the same number of steps."""
        return "steps" in self.recipe


def photographs(part: str) -> str:
    """cifar10-jpeg's train or test, from $LIPT_DATA or ../shared/data."""
    folder = Path(os.environ.get("LIPT_DATA", _BESIDE)) / "cifar10-jpeg"
    return f"parquet:{folder}/{part}.parquet"


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            name="cpu",
            train=photographs("train"),
            test=photographs("test"),
            model="resnet8",
            device="cpu",
            # From a random theta* so small a net gains from twice the learning rate.
            run={"learners": {"learning_rate": 0.2}},
            recipe={"steps": 1000, "batch_size": 64, "precision": "float32", "compile": True},
            every=3,
            one_model="epochs:15",
            ten_models="epochs:1x10",
            num_workers=2,
        ),
        Scale(
            name="gpu",
            train=photographs("train"),
            test=photographs("test"),
            model="resnet18",
            device="cuda",
            run={},
            recipe={"epochs": 200, "compile": True},
            every=20,
            one_model="epochs:15",
            ten_models="epochs:1x10",
            num_workers=1,
            threads=4,
        ),
        Scale(
            name="tiny",
            train="digits-train",
            test="digits-test",
            model="resnet8",
            device="cpu",
            run={"learners": {"num_learners": 3, "batch_size": 32, "num_steps": 2}},
            recipe={"steps": 4, "batch_size": 32, "augmentation": "crop", "padding": 1},
            every=1,
            one_model="epochs:1",
            ten_models="epochs:1x2",
            num_workers=1,
            sizes={"n": (1, 2), "M": (2,), "K": (1,)},
        ),
    )
}
