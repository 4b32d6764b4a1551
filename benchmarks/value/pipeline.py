"""The subsets of one data set and seed, chosen by the library in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

import lipt
from benchmarks.value.cells import Cell
from lipt.common.data import Dataset
from lipt.common.errors import LiptError
from lipt.trainer.subsets.subset import Subset

# The learners', whatever main training's is.
_MODEL = "resnet8"
# The paper's n=10, M=1, K=10, B=256, with a learning rate that suits a net this small; for
# digits as many examples as there are.
_LEARNERS: Mapping[str, Mapping[str, Any]] = {
    "cifar10-20k": {"learning_rate": 0.2, "num_snapshots": 3},
    "cifar10-jpeg": {"learning_rate": 0.2, "num_snapshots": 3},
    "digits": {"num_learners": 8, "batch_size": 64, "learning_rate": 0.2, "num_snapshots": 3},
    "mnist5k": {"num_learners": 8, "batch_size": 64, "learning_rate": 0.2, "num_snapshots": 3},
}


def chosen(cells: Iterable[Cell], dataset: Dataset) -> tuple[dict[Cell, Subset], float]:
    """The subsets of cells of one pipeline, and the seconds from theta* to the soup.

    A subset that cannot be chosen is named and left out.
    """
    torch.set_num_threads(1)
    found: dict[Cell, Subset] = {}
    pretrained: lipt.Pretrained | None = None
    for cell in cells:
        if pretrained is None:
            learners = _learners(cell.data, len(dataset))
            run = {"learners": learners}
            pretrained = lipt.pretrain(
                dataset, _MODEL, seed=cell.seed, run=run, device="cpu", progress=False
            )
        try:
            found[cell] = _subset(pretrained, cell)
        except LiptError as error:
            print(f"left out, {cell}: {error}", flush=True)
    return found, 0.0 if pretrained is None else sum(pretrained.seconds.values())


def _subset(pretrained: lipt.Pretrained, cell: Cell) -> Subset:
    # What `auto` takes where it is told how long main training is.
    length = "converged" if cell.recipe == "converged" else "short"
    name, everything = cell.strategy.partition(":")[0], cell.strategy == "everything:soft"
    return pretrained.select(
        "uniform" if everything else name,
        1.0 if everything else cell.fraction,
        soft_labels=cell.soft,
        options={"training": length} if name == "auto" else {},
        proxy=cell.proxy or None,
        labels="none" if cell.unlabelled else "given",
    )


def _learners(data: str, num_examples: int) -> dict[str, Any]:
    """The data's learners, with no more examples each than all of them have half of the data."""
    learners = dict(_LEARNERS[data])
    if "batch_size" in learners:
        share = num_examples // (2 * learners["num_learners"])
        learners["batch_size"] = min(learners["batch_size"], share)
    return learners
