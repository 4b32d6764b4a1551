"""All cells on one GPU: processes choose subsets while the GPU trains what is chosen."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.value.cells import Cell, recipe_of
from benchmarks.value.parallel_training import Lanes, Training
from benchmarks.value.pipeline import chosen
from benchmarks.value.settings import Dirty, make, original
from benchmarks.value.training import Result, Results, as_dataset, described, own_subset
from lipt.common.determinism import derive_seed
from lipt.common.process.devices import device_name
from lipt.common.requests import Budget
from lipt.data.dataset import Dataset
from lipt.models.registry import build_model
from lipt.trainer.subsets.subset import Subset

_NUM_LANES = 16


@dataclass(frozen=True)
class Ready:
    """A cell whose subset is known; None for all rows."""

    cell: Cell
    subset: Subset | None
    pretraining_seconds: float


def run(
    cells: Sequence[Cell],
    results: Results,
    *,
    processes: int,
    seconds: float = math.inf,
    device: str = "cuda",
) -> None:
    """Train cells of one data set, model and recipe; after `seconds` none is begun any more."""
    began = time.monotonic()
    torch.backends.cudnn.allow_tf32 = True
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        pipelines: dict[tuple[str, str, int], list[Cell]] = {}
        for cell in cells:
            if cell.needs_service:
                pipelines.setdefault(cell.pipeline, []).append(cell)
        futures = [pool.submit(_chosen, *each) for each in pipelines.items()]
        trainer = _Trainer(cells, torch.device(device))
        own = [
            Ready(cell, trainer.own_subset(cell), 0.0) for cell in cells if not cell.needs_service
        ]
        for wave in _waves(own, futures):
            if time.monotonic() - began > seconds:
                break
            new = [
                one
                for one in wave
                if not results.add_alike(one.cell, one.subset, one.pretraining_seconds)
            ]
            for cell, result in trainer.results(new):
                results.add(cell, result)
        for future in futures:
            future.cancel()
        for process in multiprocessing.active_children():
            process.terminate()


def _chosen(key: tuple[str, str, int], cells: list[Cell]) -> list[Ready]:
    data, setting, seed = key
    dataset = as_dataset(make(setting, original(data).train, seed).images, data)
    found, pretraining_seconds = chosen(cells, dataset)
    return [Ready(cell, subset, pretraining_seconds) for cell, subset in found.items()]


def _waves(own: Sequence[Ready], futures: Sequence[Future[list[Ready]]]) -> Iterator[list[Ready]]:
    """Full waves first of what needs no pipeline, then of what is chosen, as it comes."""
    waiting, coming, ended = list(own), as_completed(futures), False
    while waiting or not ended:
        while not ended and len(waiting) < _NUM_LANES:
            done = next(coming, None)
            ended = done is None
            waiting += [] if done is None else done.result()
        yield waiting[:_NUM_LANES]
        waiting = waiting[_NUM_LANES:]


@dataclass(frozen=True)
class _Served:
    """The data of one pipeline; its pixels begin at row `first` of the pool."""

    dirty: Dirty
    dataset: Dataset
    first: int
    mean_C: Tensor
    std_C: Tensor


class _Trainer:
    """The pixels of all settings on the GPU, and lanes that train on them."""

    def __init__(self, cells: Sequence[Cell], device: torch.device) -> None:
        self._served: dict[tuple[str, str, int], _Served] = {}
        self._test = original(cells[0].data).test
        parts, first = [self._test.images_NCHW], len(self._test)
        for key in dict.fromkeys(cell.pipeline for cell in cells):
            data, setting, seed = key
            dirty = make(setting, original(data).train, seed)
            dataset = as_dataset(dirty.images, data)
            pixels = dirty.images.images_NCHW.double().div_(255)
            std_C, mean_C = torch.std_mean(pixels, dim=(0, 2, 3), correction=0)
            self._served[key] = _Served(dirty, dataset, first, mean_C.float(), std_C.float())
            parts.append(dirty.images.images_NCHW)
            first += len(dirty.images)
        self._pool_PCHW = torch.cat(parts).to(device)
        self._lanes: Lanes | None = None
        print(f"{len(self._served)} data sets on {device_name(device)}", flush=True)

    def own_subset(self, cell: Cell) -> Subset | None:
        """The subset of a cell that needs no pipeline."""
        served = self._served[cell.pipeline]
        return own_subset(cell, served.dirty, served.dataset)

    def results(self, wave: Sequence[Ready]) -> Iterator[tuple[Cell, Result]]:
        """Train up to as many as there are lanes."""
        if not wave:
            return
        trainings = [self._training(one) for one in wave]
        if self._lanes is None:
            self._lanes = Lanes(trainings[0], self._pool_PCHW, _NUM_LANES)
        started = time.monotonic()
        lanes = self._lanes.train(trainings)
        seconds = (time.monotonic() - started) / len(wave)
        for one, training, lane in zip(wave, trainings, lanes, strict=True):
            served, tested = self._served[one.cell.pipeline], torch.arange(len(self._test))
            accuracy = self._lanes.accuracy(lane, tested, self._test.labels_N)
            labels_K = served.dirty.images.labels_N[training.rows_K - served.first]
            subset_accuracy = self._lanes.accuracy(lane, training.rows_K, labels_K)
            result = described(one.subset, served.dirty, accuracy, subset_accuracy, seconds)
            result = replace(result, pretraining_seconds=one.pretraining_seconds)
            print(f"{accuracy:.1%} after {seconds:.1f} s: {one.cell}", flush=True)
            yield one.cell, result

    def _training(self, one: Ready) -> Training:
        cell, subset = one.cell, one.subset
        served, recipe = self._served[cell.pipeline], recipe_of(cell)
        images = served.dirty.images
        ids_K = torch.arange(len(images))
        if subset is not None:
            ids_K = torch.from_numpy(np.array(subset.indices))
        num_classes = len(images.class_names)
        targets_KC = functional.one_hot(images.labels_N[ids_K], num_classes).float()
        if cell.soft and subset is not None and subset.soft_labels is not None:
            soft_KC = torch.from_numpy(subset.soft_labels.astype(np.float32))
            alpha = subset.recommended_alpha
            targets_KC = (1 - alpha) * targets_KC + alpha * soft_KC
        model = build_model(
            cell.model,
            num_classes=num_classes,
            inputs=served.dataset.inputs,
            seed=derive_seed(recipe.seed, "main-model"),
        )
        rows_K = ids_K + served.first
        recipe = recipe.model_copy(update={"drop_last": True})
        drawn = Budget(cell.fraction).of(len(images))
        num_drawn = drawn if cell.strategy == "resampled" else None
        return Training(model, rows_K, targets_KC, served.mean_C, served.std_C, recipe, num_drawn)
