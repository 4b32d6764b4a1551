"""Running cells: one pipeline after another, its subsets first, then its trainings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from benchmarks.value.cells import Cell
from benchmarks.value.originals import original
from benchmarks.value.pipeline import pipeline
from benchmarks.value.results import Results
from benchmarks.value.settings import make
from benchmarks.value.training import Result, as_dataset, facts_of, own_subset, train
from lipt.common.errors import LiptError
from lipt.trainer.subsets.subset import Subset


def run(cells: Sequence[Cell], results: Results, work: Path) -> None:
    """Do the cells in their order, and write each result as it comes."""
    for (data, setting, seed), group in groupby(cells, key=lambda cell: cell.pipeline):
        todo = list(group)
        dirty = make(setting, original(data).train, seed)
        dataset = as_dataset(dirty.images, data)
        test = as_dataset(original(data).test, data)
        chosen, pretraining_seconds = _chosen(todo, work, len(dataset))
        for cell in todo:
            if cell.needs_service and cell not in chosen:
                continue
            subset = chosen.get(cell)
            if not cell.needs_service:
                subset = own_subset(cell, dirty, dataset)
            elif subset is not None:
                subset = replace(subset, fingerprint=dataset.fingerprint)
            same = results.with_digest(cell, "" if subset is None else subset.digest)
            if same is not None:
                results.add(cell, _as_chosen(same, subset, pretraining_seconds))
                print(f"{same.accuracy:.1%}, as the same examples: {cell}", flush=True)
                continue
            started = time.monotonic()
            result = train(cell, subset, dirty, dataset, test)
            if cell.needs_service:
                result = replace(result, pretraining_seconds=pretraining_seconds)
            results.add(cell, result)
            seconds = time.monotonic() - started
            print(f"{result.accuracy:.1%} in {seconds:.0f} s: {cell}", flush=True)


def _as_chosen(same: Result, subset: Subset | None, pretraining_seconds: float) -> Result:
    """The result of the same examples, at the price at which these were chosen."""
    manifest = {} if subset is None else subset.manifest
    costs = manifest.get("costs", {})
    return replace(
        same,
        selection_seconds=float(costs.get("selection_seconds", 0.0)),
        pretraining_seconds=pretraining_seconds if costs else 0.0,
        facts=facts_of(manifest),
    )


def _chosen(
    cells: Iterable[Cell], work: Path, num_examples: int
) -> tuple[dict[Cell, Subset], float]:
    """The subsets that a coordinator chooses; one that cannot be had is named and left out."""
    asking = [cell for cell in cells if cell.needs_service]
    found: dict[Cell, Subset] = {}
    if not asking:
        return found, 0.0
    with pipeline(*asking[0].pipeline, work, num_examples=num_examples) as served:
        for cell in asking:
            try:
                found[cell] = served.subset(cell)
            except LiptError as error:
                print(f"left out, {cell}: {error}", flush=True)
        return found, served.pretraining_seconds
