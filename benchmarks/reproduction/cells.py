"""Cells: one main training each, by what it is trained on; tables share them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lipt.common.config.values import merge

EVERYTHING, REDRAWN, RANDOM, AUTO = "everything", "redrawn", "uniform_per_class", "auto"
# Those that need no coordinator.
_OWN = (EVERYTHING, REDRAWN)
LIPT = "lipt"
# Table 1's: looks at the test set take as long as training itself.
_RACING = (0.1, 1.0)


@dataclass(frozen=True)
class Cell:
    """One training.

    strategy: of the coordinator, or `everything`, or `redrawn`.
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
    return merge(merge(scale_run, cell.overrides), {"model": model, "seed": seed})


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
