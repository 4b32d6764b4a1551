"""Choosing from a table of scores, as a coordinator chooses from the signals it computed itself.

Shapes: N examples, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lipt.arrow.columns import matrix_of, whole_numbers
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.determinism.seeding import derive_seed
from lipt.common.errors import DataError
from lipt.common.subsets import resolve_budget, subset_digest
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.signals.signals import Signals
from lipt.core.signals.stored import STORAGE_LIMITS
from lipt.trainer.subsets.subset import Subset


def select_from(
    table: Any,
    strategy: str,
    fraction: float | None = None,
    seed: int = 0,
    *,
    budget: int | None = None,
    balanced: bool | None = None,
    options: Mapping[str, str] | None = None,
    has_bias: bool = True,
    threads: int = 1,
    fingerprint: str = "",
) -> Subset:
    """The subset that a coordinator chooses on these signals of theta_p (proxy `soup`).

    Args:
        table: what `Judge.scores` gave of every example, as one Arrow table, rows in any order.
        strategy: one that looks at errors, features and labels alone.
        fraction: of the examples, in (0, 1]; this or `budget`.
        seed: the run's.
        budget: how many examples.
        balanced: equal shares per class; the strategy's default where None.
        options: the strategy's own, by name, as text.
        has_bias: whether the model's last layer has one.
        threads: as the run's `evaluation_threads`.
        fingerprint: of the data, for `Subset.apply` to compare.

    Raises:
        DataError: ids are not 0..N-1, each once, or a column is missing.
        BudgetError, StrategyOptionError, UnknownNameError: as `Client.subset`.
        SignalsError: the strategy needs what a table has not: learners, a validation split, ...
    """
    chosen_by = find_strategy(strategy)
    parsed = chosen_by.parse_options(dict(options or {}))
    signals = _signals(table, has_bias=has_bias)
    budget = resolve_budget(fraction=fraction, budget=budget, num_examples=len(signals))
    with pinned_kernels(threads):
        chosen = select(
            chosen_by,
            signals,
            budget,
            balanced=chosen_by.resolve_balance(balanced),
            seed=derive_seed(seed, "selection"),
            options=parsed,
        )
    indices, weights = chosen.indices_K.numpy(), chosen.weights_K.numpy()
    manifest = {"data": {"num_examples": len(signals)}, "stopped_early": chosen.stopped_early}
    digest = subset_digest(indices, weights)
    return Subset(indices, weights, fingerprint, digest, strategy, manifest)


def _signals(table: Any, *, has_bias: bool) -> Signals:
    ids_N = whole_numbers(table, "id")
    order_N = ids_N.argsort()
    if not len(ids_N) or not torch.equal(ids_N[order_N], torch.arange(len(ids_N))):
        raise DataError(
            f"the ids of the table's {len(ids_N)} rows are not 0..{len(ids_N) - 1}, each once. "
            "Give the scores of all examples, by their row numbers in the data."
        )
    errors_NC, features_ND = matrix_of(table, "errors"), matrix_of(table, "features")
    # As a coordinator keeps so many.
    limits = STORAGE_LIMITS
    return Signals(
        errors_NC[order_N].to(limits.error_dtype(errors_NC.numel())),
        features_ND[order_N].to(limits.feature_dtype(features_ND.numel())),
        whole_numbers(table, "label")[order_N],
        has_bias=has_bias,
    )
