"""The subsets of one data set and seed, chosen by the library in this process."""

from __future__ import annotations

from collections.abc import Iterable

import torch

import lipt
from benchmarks.value.cells import Cell
from lipt.common.errors import LiptError
from lipt.data.dataset import Dataset
from lipt.trainer.subsets.subset import Subset

# The learners', whatever main training's is.
_MODEL = "resnet8"
# The default learners, with the states that `dual` looks at.
_RUN = {"learners": {"num_snapshots": 3}}


def chosen(cells: Iterable[Cell], dataset: Dataset) -> tuple[dict[Cell, Subset], float]:
    """The subsets of cells of one pipeline, and the seconds from theta* to the soup.

    A subset that cannot be chosen is named and left out.
    """
    torch.set_num_threads(1)
    found: dict[Cell, Subset] = {}
    pretrained: lipt.Pretrained | None = None
    for cell in cells:
        if pretrained is None:
            pretrained = lipt.pretrain(
                dataset, _MODEL, seed=cell.seed, run=_RUN, device="cpu", progress=False
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
