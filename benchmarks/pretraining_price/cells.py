"""Cells of the bench: LiPT with some workers, and the ordinary warm-ups that it replaces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIPT = "lipt"
# The same with `soup.search = coarse_to_fine`.
COARSE_TO_FINE = "lipt-coarse-to-fine"
# Either way.
LIPTS = (LIPT, COARSE_TO_FINE)


@dataclass(frozen=True, order=True)
class Cell:
    """One measurement.

    scale: of what size; see `SCALES`.
    pretraining: `LIPT`, `COARSE_TO_FINE`, or what the strategy is given as its option of that name.
    num_workers: worker processes.
    round: of several of the same.
    """

    scale: str
    pretraining: str
    num_workers: int
    round: int = 0

    @property
    def name(self) -> str:
        """For folders and for what is said meanwhile."""
        what = self.pretraining.replace(":", "-")
        return f"{self.scale}-{what}-{self.num_workers}w-{self.round}"


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    source: the coordinator's data.
    model: of the learners and of the warm-ups.
    learners: n, M, K and B.
    warm_ups: epochs that LiPT stands against, the ten short runs of GraNd first.
    num_workers: how many worker processes LiPT is measured with.
    """

    source: str
    model: str
    learners: Mapping[str, Any]
    warm_ups: tuple[str, str]
    num_workers: tuple[int, ...]


def _cifar10() -> str:
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return f"parquet:{Path(os.environ.get('LIPT_DATA', beside)) / 'cifar10-jpeg/train.parquet'}"


_FULL: Mapping[str, Any] = {
    "num_learners": 10,
    "num_minibatches": 1,
    "num_steps": 10,
    "batch_size": 256,
    # One that suits a net this small; the default is ResNet-18's.
    "learning_rate": 0.2,
}

SCALES: Mapping[str, Scale] = {
    "full": Scale(_cifar10(), "resnet8", _FULL, ("epochs:1x10", "epochs:15"), (1, 2, 4)),
    "tiny": Scale(
        "digits",
        "resnet8",
        {**_FULL, "num_learners": 2, "num_steps": 2, "batch_size": 32},
        ("epochs:1x2", "epochs:2"),
        (1, 2),
    ),
}


def cells(scale: str, rounds: int) -> Iterator[Cell]:
    """Every cell, in turns: each round has all of them."""
    sizes = SCALES[scale]
    for number in range(rounds):
        for pretraining in LIPTS:
            for num_workers in sizes.num_workers:
                yield Cell(scale, pretraining, num_workers, number)
        for pretraining in sizes.warm_ups:
            yield Cell(scale, pretraining, 0, number)
