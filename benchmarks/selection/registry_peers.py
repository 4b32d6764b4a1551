"""apricot and submodlib, from the package registry: facility location over our kernel.

Both want an N x N kernel of similarities. It is made by the same function for both, in
the measured time, from the factors and not from gradients written out: without that it
would be C (D + 1) columns instead of C + D.

Shapes: n examples of a class or all N.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from benchmarks.selection.implementation import (
    Chosen,
    PeerMissingError,
    Run,
    Task,
    joined,
    unweighted,
)
from lipt.core.selection.pairs import proximity, scaled_cosine
from lipt.core.selection.vectors import gradients_of
from lipt.core.signals.signals import Signals

Kernel = Callable[[Signals], Tensor]
Solve = Callable[[np.ndarray, int], np.ndarray]


def closeness(signals: Signals) -> Tensor:
    """The largest distance minus the distance of the gradients; n x n."""
    proximity_nn = proximity(gradients_of(signals)).block(slice(None), slice(None))
    return proximity_nn.sub_(proximity_nn.min())


def scaled_cosines(signals: Signals) -> Tensor:
    """(1 + cosine) / 2 of the gradients; n x n."""
    return scaled_cosine(gradients_of(signals)).block(slice(None), slice(None))


def per_class(load: Callable[[], Solve]) -> Callable[[Task], Run]:
    """CRAIG: facility location over distances, one class after another."""

    def prepare(task: Task) -> Run:
        solve = _warm(load())

        def run() -> Chosen:
            return joined(
                [
                    unweighted(
                        rows[torch.from_numpy(solve(kernel_of(task, rows, closeness), quota))]
                    )
                    for rows, quota in task.classes()
                ]
            )

        return run

    return prepare


def over_all(load: Callable[[], Solve]) -> Callable[[Task], Run]:
    """Facility location over cosines, all examples at once."""

    def prepare(task: Task) -> Run:
        solve = _warm(load())

        def run() -> Chosen:
            rows = torch.arange(len(task.signals))
            kernel = kernel_of(task, rows, scaled_cosines)
            return unweighted(torch.from_numpy(solve(kernel, task.budget)))

        return run

    return prepare


def kernel_of(task: Task, rows: Tensor, kernel: Kernel) -> np.ndarray:
    if len(rows) == len(task.signals):
        return kernel(task.signals).numpy()
    return kernel(task.signals.take(rows)).numpy()


def apricot() -> Solve:
    """apricot's default optimizer for the function, lazy greedy."""
    module = _import("apricot", "apricot-select")

    def solve(kernel: np.ndarray, budget: int) -> np.ndarray:
        selector = module.FacilityLocationSelection(budget, metric="precomputed", optimizer="lazy")
        return np.asarray(selector.fit(kernel).ranking, dtype=np.int64)

    return solve


def submodlib() -> Solve:
    module = _import("submodlib", "submodlib-py")

    def solve(kernel: np.ndarray, budget: int) -> np.ndarray:
        function = module.FacilityLocationFunction(
            n=len(kernel), mode="dense", sijs=kernel, separate_rep=False
        )
        picks = function.maximize(budget=budget, optimizer="LazyGreedy", show_progress=False)
        return np.array([index for index, _ in picks], dtype=np.int64)

    return solve


def _import(name: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PeerMissingError(f"not installed: pip install {package}") from error


def _warm(solve: Solve) -> Solve:
    """Compiled at first use: so use it once before it is measured."""
    points = torch.linspace(0, 1, 40)
    solve((1 - (points[:, None] - points).abs()).numpy(), 5)
    return solve
