"""Select: a strategy, signals and a budget become a subset.

Shapes: N examples, C classes, D features, K budget.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lipt.common.determinism import derive_seed
from lipt.common.errors import SignalsError
from lipt.common.signals import row_blocks
from lipt.common.signals.passes import require_finite_rows
from lipt.common.subsets import require_budget
from lipt.core.selection.selection import Selection, class_shares
from lipt.core.selection.strategy import Need, Strategy
from lipt.core.signals.signals import Signals


def select(
    strategy: Strategy,
    signals: Signals,
    budget: int,
    *,
    balanced: bool,
    seed: int,
    options: Mapping[str, Any],
) -> Selection:
    """Choose exactly `budget` examples, or fewer with a reason; rows ascending, on the CPU.

    Balanced, a strategy sees one class at a time, unless it balances by itself. BudgetError if the
    budget is outside 1..N. SignalsError if signals are missing, or not finite.
    """
    require_budget(budget, len(signals))
    for need in sorted(strategy.needs_for(options)):
        for model in (signals, *signals.others):
            for name, values in _values(model, need).items():
                if values is None or not values.numel():
                    raise SignalsError(
                        f"strategy {strategy.name!r} needs {name}. {_REMEDIES.get(need, _REMEDY)}"
                    )
                _require_finite(values, name)
    if strategy.prepare is not None:
        signals = _call(strategy.prepare, signals, seed=seed, **options)
    choose: Callable[..., Selection] = partial(_choose, strategy, balanced=balanced, **options)
    if balanced and not strategy.balances_itself:
        parts = list(_choose_per_class(choose, signals, budget, seed))
    else:
        parts = [choose(signals, budget, seed=seed)]
    indices_K = torch.cat([part.indices_K for part in parts])
    weights_K = torch.cat([part.weights_K for part in parts])
    order_K = indices_K.argsort()
    return Selection(
        indices_K[order_K],
        weights_K[order_K],
        stopped_early=" ".join(part.stopped_early for part in parts if part.stopped_early),
        # From a strategy that saw all classes at once.
        findings=parts[0].findings if len(parts) == 1 else {},
    )


def _call(function: Callable[..., Any], *arguments: Any, **given: Any) -> Any:
    """Call a function with those of the keywords that it takes."""
    parameters = inspect.signature(function).parameters
    return function(*arguments, **{name: given[name] for name in parameters if name in given})


def _choose_per_class(
    choose: Callable[..., Selection], signals: Signals, budget: int, seed: int
) -> Iterator[Selection]:
    for label, rows, quota in class_shares(signals.labels_N, budget):
        own_seed = derive_seed(seed, "selection-class", label)
        part = choose(signals.of_class(label), quota, seed=own_seed)
        reason = f"class {label}: {part.stopped_early}" if part.stopped_early else ""
        yield Selection(rows.cpu()[part.indices_K], part.weights_K, stopped_early=reason)


def _choose(strategy: Strategy, signals: Signals, budget: int, **given: Any) -> Selection:
    selection: Selection = _call(strategy.function, signals, budget, **given)
    indices_K, weights_K = selection.indices_K.cpu(), selection.weights_K.float().cpu()
    num_distinct = len(torch.unique(indices_K))
    in_range = bool(((indices_K >= 0) & (indices_K < len(signals))).all())
    weighted = bool((weights_K.isfinite() & (weights_K >= 0)).all())
    enough = len(indices_K) == budget or (len(indices_K) < budget and selection.stopped_early)
    if not (len(indices_K) == num_distinct == len(weights_K) and enough and in_range and weighted):
        raise RuntimeError(
            f"strategy {strategy.name!r} answered with {len(indices_K)} indices ({num_distinct} "
            f"distinct) and {len(weights_K)} weights, for a budget of {budget} among "
            f"{len(signals)} examples. This is a defect of the strategy: please report it."
        )
    return Selection(indices_K, weights_K, selection.stopped_early, selection.findings)


def _require_finite(values: Tensor, name: str) -> None:
    row_bytes = values[0].numel() * values.element_size()
    blocks = list(row_blocks(len(values), row_bytes))
    # A sum is not finite if one of its terms is not: usually no further check is needed.
    sums = [
        values[rows].sum(dtype=torch.promote_types(values.dtype, torch.float32)) for rows in blocks
    ]
    if bool(torch.stack(sums).isfinite().all()):
        return
    finite_N = torch.cat(
        [values[rows].reshape(rows.stop - rows.start, -1).isfinite().all(dim=-1) for rows in blocks]
    )
    require_finite_rows(finite_N, torch.arange(len(values)), name)


_REMEDY = "They were not computed: compute them first, or give your own."
_REMEDIES = {
    Need.VALIDATION: "The run has none: set validation.fraction above 0.",
    Need.DYNAMICS: "Only a run with learners has it, on its own weights: leave `weights` unset.",
    Need.PAIRED_FEATURES: (
        "Give a safetensors file with the tensors `features` and `paired_features`, a row per "
        "example: `lipt subset get --features FILE.safetensors`, or client.subset(features=...)."
    ),
}


def _values(signals: Signals, need: Need) -> Mapping[str, Tensor | None]:
    held, dynamics = signals.validation, signals.dynamics
    match need:
        case Need.SIGNALS:
            return {"errors": signals.errors_NC, "features": signals.features_ND}
        case Need.FEATURES:
            return {"features": signals.features_ND}
        case Need.GRADIENT_NORMS:
            return {"gradient norms": signals.gradient_norms_N}
        case Need.PAIRED_FEATURES:
            pairs_NP = signals.paired_features_NP
            return {"features of pairs": signals.features_ND, "paired features": pairs_NP}
        case Need.DUPLICATES:
            return {"near-duplicates": signals.pictures_N}
        case Need.VALIDATION if held is not None:
            values = _values(held, Need.SIGNALS)
            return {f"{name} of validation examples": values[name] for name in values}
        case Need.VALIDATION:
            return {"a validation split": None}
        case Need.DYNAMICS if dynamics is not None:
            words = {name.rpartition("_")[0].replace("_", " "): name for name in vars(dynamics)}
            return {f"the learners' {word}": getattr(dynamics, words[word]) for word in words}
        case Need.DYNAMICS:
            return {"the learners' view of the examples": None}
