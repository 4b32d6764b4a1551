"""The whole decision: a strategy, signals and a budget become a subset.

Shapes: N examples, C classes, D features, K budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lipt.common.errors import SignalsError
from lipt.common.seeding import derive_seed
from lipt.coordinator.selection.budget import require_budget, resolve_budget
from lipt.coordinator.selection.quotas import class_quotas
from lipt.coordinator.selection.registry import Need, Strategy
from lipt.coordinator.selection.selection import Selection
from lipt.coordinator.signals import Signals, require_finite_rows

__all__ = ["resolve_budget", "select"]


def select(
    strategy: Strategy,
    signals: Signals,
    budget: int,
    *,
    balanced: bool,
    seed: int,
    options: Mapping[str, Any],
) -> Selection:
    """Choose exactly `budget` examples.

    Balanced, the strategy sees one class at a time, with the class's own seed and
    the quota of `class_quotas`.

    Args:
        strategy: from the registry.
        signals: with what the strategy needs; of labels alone where that is nothing.
        budget: K, in 1..N.
        balanced: from `strategy.resolve_balance`.
        seed: for strategies that draw.
        options: from `strategy.parse_options`: all of them, by name.

    Returns:
        K distinct row numbers, ascending, and their weights.

    Raises:
        BudgetError: the budget is outside 1..N.
        SignalsError: signals are not finite, or some that the strategy needs are missing.
    """
    require_budget(budget, len(signals))
    _require_signals(strategy, signals, options)
    if balanced:
        parts = _select_per_class(strategy, signals, budget, seed=seed, options=options)
    else:
        parts = [_apply(strategy, signals, budget, seed=seed, options=options)]
    indices_K = torch.cat([part.indices_K for part in parts])
    weights_K = torch.cat([part.weights_K for part in parts])
    order_K = indices_K.argsort()
    return Selection(indices_K=indices_K[order_K], weights_K=weights_K[order_K])


def _select_per_class(
    strategy: Strategy, signals: Signals, budget: int, *, seed: int, options: Mapping[str, Any]
) -> list[Selection]:
    parts = []
    for label, quota in enumerate(class_quotas(torch.bincount(signals.labels_N).tolist(), budget)):
        if not quota:
            continue
        rows = torch.nonzero(signals.labels_N == label).flatten()
        class_seed = derive_seed(seed, "selection-class", label)
        part = _apply(strategy, signals.take(rows), quota, seed=class_seed, options=options)
        parts.append(Selection(indices_K=rows[part.indices_K], weights_K=part.weights_K))
    return parts


def _apply(
    strategy: Strategy, signals: Signals, budget: int, *, seed: int, options: Mapping[str, Any]
) -> Selection:
    seeded = {"seed": seed} if strategy.takes_seed else {}
    selection = strategy.function(signals, budget, **options, **seeded)
    indices_K = selection.indices_K
    num_distinct = len(torch.unique(indices_K))
    in_range = bool(((indices_K >= 0) & (indices_K < len(signals))).all())
    if not (len(indices_K) == num_distinct == len(selection.weights_K) == budget and in_range):
        raise RuntimeError(
            f"strategy {strategy.name!r} answered with {len(indices_K)} indices, {num_distinct} of "
            f"them distinct, and {len(selection.weights_K)} weights, for a budget of {budget} "
            f"among {len(signals)} examples. This is a defect of the strategy: please report it."
        )
    return selection


def _require_signals(strategy: Strategy, signals: Signals, options: Mapping[str, Any]) -> None:
    rows_N = torch.arange(len(signals))
    for need in sorted(strategy.needs(options)):
        for name, values in _values(signals, need).items():
            if values is None or not values.numel():
                raise SignalsError(
                    f"strategy {strategy.name!r} needs {name}, which were not computed. "
                    "Compute the signals with the run's weights first."
                )
            finite_N = values.reshape(len(values), -1).isfinite().all(dim=-1)
            require_finite_rows(finite_N, rows_N, name)


def _values(signals: Signals, need: Need) -> dict[str, torch.Tensor | None]:
    if need is Need.SIGNALS:
        return {"errors": signals.errors_NC, "features": signals.features_ND}
    return {"gradient norms": signals.gradient_norms_N}
