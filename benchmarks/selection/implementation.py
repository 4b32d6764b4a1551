"""Implementations of a comparison: a library's or our way to the same selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lipt.core.selection.select import find_strategy, select
from lipt.core.signals.signals import Signals
from lipt.data.groups import class_quotas

# GLISTER's step, for all implementations, on the mean loss of a class's chosen examples: one that
# changes the validation loss by a good part of itself.
LEARNING_RATE = 0.02
ROUNDS = 15


class PeerMissingError(Exception):
    """A library or checkout is not there; the message says how to get it."""


@dataclass(frozen=True)
class Checkouts:
    """Where peers that are in no registry lie."""

    deepcore: Path | None
    cords: Path | None


@dataclass(frozen=True)
class Task:
    """Input of every implementation."""

    signals: Signals
    budget: int
    checkouts: Checkouts

    @property
    def eta(self) -> float:
        """GLISTER's step per chosen example: libraries that sum over them call this eta."""
        num_classes = len(self.signals.labels_N.unique())
        return LEARNING_RATE * num_classes / self.budget

    def classes(self) -> list[tuple[Tensor, int]]:
        """The row numbers of every class, with its quota."""
        counts_C = torch.bincount(self.signals.labels_N).tolist()
        return [
            (torch.nonzero(self.signals.labels_N == label).flatten(), quota)
            for label, quota in enumerate(class_quotas(counts_C, self.budget))
            if quota
        ]


@dataclass(frozen=True)
class Chosen:
    """An implementation's answer: row numbers of the signals, and weights where it has them."""

    indices_K: Tensor
    weights_K: Tensor


Run = Callable[[], Chosen]


@dataclass(frozen=True)
class Implementation:
    """One row of a table.

    prepare: imports, compiles what is compiled at first use on a small task, and returns
        the call that is measured. Raises PeerMissingError where the peer is not there.
    against: which of our rows its ratio is taken to.
    """

    name: str
    prepare: Callable[[Task], Run]
    against: str = ""
    ours: bool = False


def unweighted(indices_K: Tensor) -> Chosen:
    return Chosen(indices_K, torch.ones(len(indices_K)))


def joined(parts: list[Chosen]) -> Chosen:
    return Chosen(
        torch.cat([part.indices_K for part in parts]),
        torch.cat([part.weights_K for part in parts]),
    )


# Enough for every kernel and compiled loop to be used once.
WARM_ROWS_PER_CLASS = 40


def ours(
    name: str,
    strategy: str,
    options: Mapping[str, str],
    *,
    balanced: bool = True,
) -> Implementation:
    """A row of ours.

    Args:
        name: the row's.
        strategy: in the registry.
        options: as a user would give them.
        balanced: per class, or over all.
    """

    def prepare(task: Task) -> Run:
        found = find_strategy(strategy)

        def run(signals: Signals, budget: int) -> Chosen:
            selection = select(found, signals, budget, balanced=balanced, seed=0, options=options)
            return Chosen(selection.indices_K, selection.weights_K)

        few = few_of_each_class(task.signals)
        run(few, max(1, len(few) // 10))
        return lambda: run(task.signals, task.budget)

    return Implementation(name, prepare, ours=True)


def few_of_each_class(signals: Signals) -> Signals:
    """A small task with the same classes, and the same kinds of tensors."""
    rows = torch.cat(
        [
            torch.nonzero(signals.labels_N == label).flatten()[:WARM_ROWS_PER_CLASS]
            for label in signals.labels_N.unique().tolist()[:3]
        ]
    )
    return replace(
        signals,
        errors_NC=signals.errors_NC[rows],
        features_ND=signals.features_ND[rows],
        labels_N=signals.labels_N[rows],
    )
