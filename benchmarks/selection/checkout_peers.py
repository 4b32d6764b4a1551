"""DeepCore and CORDS, from checkouts: their own solvers on our signals.

Both write gradients out, N x C (D + 1), class by class; that is in the measured time, as
it is in theirs. What is imported is the module with the solver: a package's __init__ that
would pull in its networks, data sets and configuration files is passed over.

Shapes: n examples of a class, C classes, D features.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.selection.implementation import (
    ROUNDS,
    Chosen,
    PeerMissingError,
    Run,
    Task,
    joined,
    unweighted,
)
from benchmarks.selection.workload import log_probabilities, materialized
from lipt.core.signals.views import ValidationSignals

# DeepCore prints a line every so many steps.
_QUIET = SimpleNamespace(print_freq=10**9)


def deepcore_craig(task: Task) -> Run:
    """CRAIG's kernel and lazy greedy, as its `Craig` puts them together."""
    utils = _deepcore(task, "methods_utils")

    def run() -> Chosen:
        parts = []
        for rows, quota in task.classes():
            gradients = materialized(task.signals.take(rows)).numpy()
            matrix = -1.0 * utils.euclidean_dist_pair_np(gradients)
            matrix -= np.min(matrix) - 1e-3
            function = utils.FacilityLocation(index=rows.numpy(), similarity_matrix=matrix)
            parts.append(_maximized(utils.LazyGreedy, function, rows, quota))
        return joined(parts)

    return run


def deepcore_facility_location(
    task: Task, optimizer: Literal["LazyGreedy", "ApproximateLazyGreedy"]
) -> Run:
    """Facility location over cosines of gradients, as its `Submodular` does it."""
    utils = _deepcore(task, "methods_utils")

    def run() -> Chosen:
        gradients = materialized(task.signals).numpy()
        rows = torch.arange(len(gradients))
        function = utils.FacilityLocation(
            index=rows.numpy(),
            similarity_kernel=lambda a, b: utils.cossim_np(gradients[a], gradients[b]),
        )
        return _maximized(getattr(utils, optimizer), function, rows, task.budget)

    return run


def _maximized(optimizer: Any, function: Any, rows: Tensor, budget: int) -> Chosen:
    chosen = optimizer(args=_QUIET, index=rows.numpy(), budget=budget).select(
        gain_function=function.calc_gain, update_state=function.update_state
    )
    return unweighted(torch.from_numpy(np.asarray(chosen, dtype=np.int64)))


def deepcore_gradmatch(task: Task) -> Run:
    """Its CPU solver, against the mean gradient and with its lambda of 1."""
    solver = _deepcore(task, "gradmatch").GradMatch.orthogonal_matching_pursuit_np
    stand_in = SimpleNamespace(args=_QUIET)

    def run() -> Chosen:
        parts = []
        for rows, quota in task.classes():
            gradients = materialized(task.signals.take(rows)).numpy()
            weights = solver(stand_in, gradients.T, gradients.mean(axis=0), budget=quota)
            parts.append(_nonzero(rows, torch.from_numpy(weights)))
        return joined(parts)

    return run


def cords_gradmatch(task: Task, path: Literal["cpu", "torch"]) -> Run:
    """Its two solvers, against the sum of the gradients and with its lambda of 0.

    What it adds at random to fill the budget up is left out: it would only add to the residual.
    """
    solvers = _cords(task, "selectionstrategies.helpers.omp_solvers")

    def run() -> Chosen:
        parts = []
        for rows, quota in task.classes():
            gradients = materialized(task.signals.take(rows))
            target = gradients.sum(dim=0)
            if path == "cpu":
                weights = torch.from_numpy(
                    solvers.OrthogonalMP_REG(
                        gradients.T.numpy(), target.numpy(), nnz=quota, positive=True, lam=0
                    )
                )
            else:
                weights = solvers.OrthogonalMP_REG_Parallel_V1(
                    gradients.T, target, nnz=quota, positive=True, lam=0
                )
            parts.append(_nonzero(rows, weights))
        return joined(parts)

    return run


def _nonzero(rows: Tensor, weights_n: Tensor) -> Chosen:
    positions = torch.nonzero(weights_n).flatten()
    return Chosen(rows[positions], weights_n[positions].float())


def deepcore_glister(task: Task) -> Run:
    """Its lazy greedy with its update of the validation gradient CALLED.

    Its own call misspells the argument's name, so the update never happens and what is left is
    a fixed top-k. Its step takes the mean of the chosen, not the sum: its eta is as much larger.
    """
    utils = _deepcore(task, "methods_utils")
    glister = _deepcore(task, "glister").Glister

    def run() -> Chosen:
        parts = []
        for rows, quota in task.classes():
            state = glister.__new__(glister)
            taken = task.signals.take(rows)
            held = ValidationSignals.of(task.signals).of_class(int(taken.labels_N[0]))
            state.args = SimpleNamespace(num_classes=held.errors_NC.shape[1], selection_batch=256)
            state.embedding_dim = held.features_ND.shape[1]
            state.eta = task.eta * quota
            state.criterion = nn.CrossEntropyLoss(reduction="none")
            state.init_out, state.init_emb = log_probabilities(held), held.features_ND
            state.init_y = held.labels_N
            state.train_grads = materialized(taken)
            state.val_grads = materialized(held).mean(dim=0)
            optimizer = utils.LazyGreedy(args=_QUIET, index=rows.numpy(), budget=quota)
            chosen = optimizer.select(
                gain_function=lambda ids, _, state=state: (
                    (state.train_grads[ids] @ state.val_grads.view(-1, 1)).numpy().flatten()
                ),
                update_state=state.update_val_gradients,
            )
            parts.append(unweighted(torch.from_numpy(chosen)))
        return joined(parts)

    return run


def cords_glister(task: Task, greedy: Literal["RGreedy", "Stochastic", "Naive"]) -> Run:
    """The greedy loop of its strategy, on a stand-in that carries gradients and logits."""
    strategy = _cords(task, "selectionstrategies.SL.glisterstrategy").GLISTERStrategy

    def run() -> Chosen:
        parts = []
        for rows, quota in task.classes():
            taken = task.signals.take(rows)
            held = ValidationSignals.of(task.signals).of_class(int(taken.labels_N[0]))
            state = strategy.__new__(strategy)
            state.model = _Head(held.features_ND.shape[1])
            state.loss = nn.CrossEntropyLoss(reduction="none")
            state.num_classes, state.linear_layer = held.errors_NC.shape[1], True
            state.selection_type, state.device = "PerClass", "cpu"
            state.eta, state.r, state.greedy = task.eta, ROUNDS, greedy
            state.logger = logging.getLogger("cords")
            state.pcvalloader = None
            state.init_out = log_probabilities(held).requires_grad_()
            state.init_l1, state.y_val = held.features_ND, held.labels_N.view(-1, 1)
            state.grads_per_elem = materialized(taken)
            state.grads_val_curr = materialized(held).mean(dim=0).view(-1, 1)
            chosen, _ = state.greedy_algo(quota)
            parts.append(unweighted(rows[torch.tensor(chosen)]))
        return joined(parts)

    return run


class _Head:
    """Model for CORDS, whose gradients are given."""

    def __init__(self, num_features: int) -> None:
        self._num_features = num_features

    def get_embedding_dim(self) -> int:
        return self._num_features

    def zero_grad(self) -> None:
        """There is nothing to reset."""


def _deepcore(task: Task, module: str) -> ModuleType:
    path = _checkout(task.checkouts.deepcore, "DEEPCORE", "PatrickZH/DeepCore")
    # The classes that gradmatch.py and glister.py inherit from train networks.
    return _module(path, "deepcore", f"deepcore.methods.{module}", ("deepcore", "deepcore.methods"))


def _cords(task: Task, module: str) -> ModuleType:
    path = _checkout(task.checkouts.cords, "CORDS", "decile-team/cords")
    packages = ("cords", "cords.selectionstrategies", "cords.selectionstrategies.SL")
    name = f"cords.{module}"
    found = _module(path, "cords", name, packages)
    # Its solvers set this for the whole process when they are imported.
    np.seterr(all="warn")
    return found


def _checkout(path: Path | None, variable: str, repository: str) -> Path:
    if path is None or not path.is_dir():
        raise PeerMissingError(
            f"no checkout: git clone https://github.com/{repository}, then {variable}=PATH"
        )
    return path


def _module(path: Path, top: str, name: str, packages: tuple[str, ...]) -> ModuleType:
    """Import one module of a checkout without running its packages' __init__."""
    if not (path / top).is_dir():
        raise PeerMissingError(f"{path} has no folder {top}")
    for package in packages:
        stub = ModuleType(package)
        stub.__path__ = [str(path.joinpath(*package.split(".")))]
        sys.modules.setdefault(package, stub)
    with warnings.catch_warnings():
        # Their docstrings have escapes that Python warns of.
        warnings.simplefilter("ignore")
        return importlib.import_module(name)
