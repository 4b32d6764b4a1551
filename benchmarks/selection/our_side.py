"""Our side: a strategy of the registry, applied as the service applies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from benchmarks.selection.side import Chosen, Run, Side, Task
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.signals.signals import Signals

# Enough for every kernel and compiled loop to be used once.
WARM_ROWS_PER_CLASS = 40


def ours(
    name: str,
    strategy: str,
    options: Mapping[str, str],
    *,
    balanced: bool = True,
) -> Side:
    """A row of ours.

    Args:
        name: the row's.
        strategy: in the registry.
        options: as a user would give them.
        balanced: per class, or over all.
    """

    def prepare(task: Task) -> Run:
        found = find_strategy(strategy)
        values = found.parse_options(options)

        def run(signals: Signals, budget: int) -> Chosen:
            selection = select(found, signals, budget, balanced=balanced, seed=0, options=values)
            return Chosen(selection.indices_K, selection.weights_K)

        few = few_of_each_class(task.signals)
        run(few, max(1, len(few) // 10))
        return lambda: run(task.signals, task.budget)

    return Side(name, prepare, ours=True)


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
