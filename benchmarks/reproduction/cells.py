"""Cells: one main training each, by what it is trained on; tables share them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lipt.common.config.run_config import PRESETS, merge
from lipt.trainer.main_training import Recipe

EVERYTHING, RESAMPLED, RANDOM, AUTO = "everything", "resampled", "uniform_per_class", "auto"
# Those that need no coordinator.
_OWN = (EVERYTHING, RESAMPLED)
LIPT = "lipt"
# Table 1's: looks at the test set take as long as training itself.
_RACING = (0.1, 1.0)


@dataclass(frozen=True)
class Cell:
    """One training.

    strategy: of the coordinator, or `everything`, or `resampled`.
    fraction: of the data that an epoch has; of `everything` the one whose steps it has.
    pretraining: as the strategies' option has it; empty where the strategy looks at no model.
    run: what is unlike the scale's run, as "section.field=value", sorted, with spaces between.
    every: epochs between two selections; 0 where the subset stays.
    seed: of the whole pipeline.
    """

    scale: str
    strategy: str
    fraction: float
    pretraining: str = ""
    run: str = ""
    every: int = 0
    seed: int = 0

    @property
    def is_own(self) -> bool:
        """Whether it needs no coordinator."""
        return self.strategy in _OWN

    @property
    def is_watched(self) -> bool:
        """Whether accuracy is looked at on the way, so that table 1 can tell who is there first."""
        plain = self.strategy in (*_OWN, RANDOM, AUTO)
        return self.every > 0 or (plain and self.fraction in _RACING)

    @property
    def needs_soup(self) -> bool:
        """Whether its subset comes from what a run's learners have become."""
        return not self.is_own and self.strategy != RANDOM and self.pretraining in ("", LIPT)

    @property
    def overrides(self) -> dict[str, Any]:
        """`run` as the settings of a run, nested."""
        found: dict[str, Any] = {}
        for part in self.run.split():
            name, _, value = part.partition("=")
            section, _, key = name.partition(".")
            found = merge(found, {section: {key: _value(value)}})
        return found


FIELDS = tuple(field.name for field in fields(Cell))


def name_of(cell: Cell) -> str:
    """A name for the cell's files."""
    return hashlib.sha256(json.dumps(asdict(cell)).encode()).hexdigest()[:16]


def run_text(**settings: object) -> str:
    """A cell's `run`: `run_text(learners__num_learners=5)`."""
    pairs = (f"{name.replace('__', '.')}={value}" for name, value in settings.items())
    return " ".join(sorted(pairs))


def with_defaults(
    cell: Cell, scale_run: Mapping[str, Any], seed: int, model: str
) -> dict[str, Any]:
    """All settings of a cell's run."""
    run = merge(merge(PRESETS["paper"], scale_run), cell.overrides)
    return merge(run, {"model": model, "seed": seed})


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@dataclass(frozen=True)
class Scale:
    """Scale of a table's measurements.

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


@dataclass(frozen=True)
class Row:
    """A row of a table.

    cell: with fraction and seed left open.
    paper: the paper's accuracy by fraction, in percent.
    fractions: in place of the table's own.
    """

    label: str
    cell: Cell
    paper: Mapping[float, float] | None = None
    fractions: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Claim:
    """Two rows, by their labels, of which the paper has the first above the second."""

    better: str
    worse: str


@dataclass(frozen=True)
class Table:
    """One of the paper's.

    question: what it asks, in a sentence.
    targets: whether it asks for seconds to an accuracy.
    claims: what the paper's figures say.
    """

    name: str
    title: str
    question: str
    fractions: tuple[float, ...]
    rows: tuple[Row, ...]
    targets: bool = False
    claims: tuple[Claim, ...] = ()

    def row(self, label: str) -> Row | None:
        """The row of that name, where this scale has it."""
        return next((row for row in self.rows if row.label == label), None)

    def cells(self, seeds: Sequence[int]) -> Iterator[Cell]:
        """Seed by seed, so that a stopped bench has every row."""
        for seed in seeds:
            for row in self.rows:
                for fraction in row.fractions or self.fractions:
                    yield self.cell(row, fraction, seed)

    def cell(self, row: Row, fraction: float, seed: int) -> Cell:
        """The cell of a row."""
        return replace(row.cell, fraction=fraction, seed=seed)
