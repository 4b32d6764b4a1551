"""One cell's main training, and what is known of the subset that it trained on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import json_lines
from benchmarks.value.cells import FIELDS, Cell, recipe_of
from benchmarks.value.pipeline import chosen
from benchmarks.value.settings import Dirty, Images, make, original
from lipt.common.determinism import derive_seed
from lipt.common.requests import Budget
from lipt.common.subsets import subset_digest
from lipt.core.selection.select import find_strategy, select
from lipt.core.signals.signals import labels_only
from lipt.data.dataset import Dataset
from lipt.data.sources.rows import fingerprint
from lipt.trainer.main_training import Schedule, fit
from lipt.trainer.resampling.samplers import RepeatedRandom
from lipt.trainer.subsets.subset import Subset
from tests.in_memory import in_memory

# The subset's accuracy at the end says whether training has converged.
_SCHEDULE = Schedule(test_at=(), subset_at=(0.99,))


@dataclass(frozen=True)
class Result:
    """Result of a cell.

    wrong: share of the subset whose labels are not the true ones; copies: share that is a
        near copy of another one in it.
    selection_seconds, pretraining_seconds: 0 where no strategy is asked.
    facts: what the subset's manifest says of how it was chosen.
    """

    accuracy: float
    subset_accuracy: float
    num_examples: int
    wrong: float
    copies: float
    digest: str
    training_seconds: float
    selection_seconds: float = 0.0
    pretraining_seconds: float = 0.0
    facts: dict[str, object] | None = None


def as_dataset(images: Images, source: str) -> Dataset:
    """The images as main training takes them."""

    def raw(row: int) -> bytes:
        return images.images_NCHW[row].numpy().tobytes()

    digest = fingerprint(images.labels_N, len(images.class_names), raw)
    return in_memory(source, images.class_names, images.labels_N, digest, images.images_NCHW)


def own_subset(cell: Cell, dirty: Dirty, dataset: Dataset) -> Subset | None:
    """The subset of a cell that needs no service; None stands for all rows."""
    if cell.strategy in ("everything", "resampled"):
        return None
    budget = Budget(cell.fraction).of(len(dataset))
    seed = derive_seed(cell.seed, "selection")
    allowed = torch.arange(len(dataset))
    name = cell.strategy
    if name == "oracle":
        allowed = torch.nonzero(dirty.ideal_N).flatten()
        name = "uniform_per_class"
        budget = min(budget, len(allowed))
    strategy = find_strategy(name)
    chosen = select(
        strategy,
        labels_only(dataset.labels_N[allowed]),
        budget,
        balanced=strategy.resolve_balance(None),
        seed=seed,
    )
    indices_K = allowed[chosen.indices_K].numpy()
    weights_K = np.ones(len(indices_K), dtype=np.float32)
    digest = subset_digest(indices_K, weights_K)
    return Subset(indices_K, weights_K, dataset.fingerprint, digest, cell.strategy)


def train(
    cell: Cell, subset: Subset | None, dirty: Dirty, dataset: Dataset, test: Dataset
) -> Result:
    """Train on the subset, on one thread."""
    torch.set_num_threads(1)
    resampled = None
    if cell.strategy == "resampled":
        budget = Budget(cell.fraction).of(len(dataset))
        resampled = RepeatedRandom(dataset, budget, cell.seed)
    trained = fit(
        cell.model,
        dataset,
        subset=subset,
        test=test,
        recipe=recipe_of(cell).model_copy(
            update={"soft_labels": subset.recommended_alpha if subset and cell.soft else 0.0}
        ),
        schedule=_SCHEDULE,
        device="cpu",
        reselect=resampled,
    )
    return described(
        subset,
        dirty,
        trained.test_accuracy or 0.0,
        trained.subset_accuracies[-1][1],
        trained.seconds,
    )


def described(
    subset: Subset | None, dirty: Dirty, accuracy: float, subset_accuracy: float, seconds: float
) -> Result:
    """The result of a training on a subset; None stands for all rows."""
    ids_K = torch.arange(len(dirty.images))
    if subset is not None:
        ids_K = torch.as_tensor(subset.indices.copy())
    originals_K = dirty.original_N[ids_K]
    manifest = {} if subset is None else subset.manifest
    return Result(
        accuracy=accuracy,
        subset_accuracy=subset_accuracy,
        num_examples=len(ids_K),
        wrong=float(dirty.wrong_N[ids_K].double().mean()),
        copies=1.0 - len(originals_K.unique()) / len(originals_K),
        digest="" if subset is None else subset.digest,
        training_seconds=seconds,
        selection_seconds=float(manifest.get("costs", {}).get("selection_seconds", 0.0)),
        facts=facts_of(manifest),
    )


def facts_of(manifest: Mapping[str, Any]) -> dict[str, object] | None:
    """How a subset was chosen, without the ids."""
    found = {
        name: manifest[name] for name in ("findings", "proxy", "soft_labels") if manifest.get(name)
    }
    if "findings" in found:
        words = ("words", "method", "noise", "accuracy")
        found["findings"] = {name: found["findings"].get(name) for name in words}
    return found or None


class Results:
    """A folder with a file of results per data set.

    Several processes may write; a line that a kill has cut in two does not count.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[Cell, dict[str, Any]]:
        """Recorded results by cell."""
        rows = (
            row for path in sorted(self._folder.glob("*.jsonl")) for row in json_lines.read(path)
        )
        return {Cell(**{name: row.pop(name) for name in FIELDS}): row for row in rows}

    def add_alike(self, cell: Cell, subset: Subset | None, pretraining_seconds: float) -> bool:
        """Take over what the same examples came to in the same training, at this choice's price.

        Returns whether they were trained on; None stands for all rows, which always are.
        """
        same = None if subset is None else self._with_digest(cell, subset.digest)
        if same is None or subset is None:
            return False
        self.add(cell, _as_chosen(same, subset, pretraining_seconds))
        print(f"{same.accuracy:.1%}, as the same examples: {cell}", flush=True)
        return True

    def _with_digest(self, cell: Cell, digest: str) -> Result | None:
        alike = replace(cell, strategy="", proxy="", fraction=0.0)
        for other, row in self.read().items():
            same = replace(other, strategy="", proxy="", fraction=0.0) == alike
            if same and row["digest"] == digest:
                return Result(**row)
        return None

    def add(self, cell: Cell, result: Result) -> None:
        """Write one more, synced."""
        path = self._folder / f"{cell.data}.jsonl"
        json_lines.append(path, {**asdict(cell), **asdict(result)})


def run(cells: Sequence[Cell], results: Results) -> None:
    """Do the cells in their order, and write each result as it comes."""
    for (data, setting, seed), group in groupby(cells, key=lambda cell: cell.pipeline):
        todo = list(group)
        dirty = make(setting, original(data).train, seed)
        dataset = as_dataset(dirty.images, data)
        test = as_dataset(original(data).test, data)
        asked = [cell for cell in todo if cell.needs_service]
        found, pretraining_seconds = chosen(asked, dataset)
        for cell in todo:
            if cell.needs_service and cell not in found:
                continue
            subset = found[cell] if cell.needs_service else own_subset(cell, dirty, dataset)
            if results.add_alike(cell, subset, pretraining_seconds):
                continue
            started = time.monotonic()
            result = train(cell, subset, dirty, dataset, test)
            if cell.needs_service:
                result = replace(result, pretraining_seconds=pretraining_seconds)
            results.add(cell, result)
            seconds = time.monotonic() - started
            print(f"{result.accuracy:.1%} in {seconds:.0f} s: {cell}", flush=True)


def _as_chosen(same: Result, subset: Subset, pretraining_seconds: float) -> Result:
    """The result of the same examples, at the price at which these were chosen."""
    costs = subset.manifest.get("costs", {})
    return replace(
        same,
        selection_seconds=float(costs.get("selection_seconds", 0.0)),
        pretraining_seconds=pretraining_seconds if costs else 0.0,
        facts=facts_of(subset.manifest),
    )
