"""Catalogue: the selection strategies of this version, described for a choice among them.

Needs no torch until `describe` is called.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StrategyOptionView:
    """A strategy's option; empty `allowed_values` allow any value of the default's type."""

    name: str
    default_value: str
    allowed_values: tuple[str, ...]
    help: str = ""


@dataclass(frozen=True)
class StrategyPresetView:
    """A preset: several options under one name."""

    name: str
    summary: str


@dataclass(frozen=True)
class StrategyView:
    """A selection strategy that a coordinator, or this installation, offers.

    needs: its inputs, such as "labels", "signals", "features" and "learners".
    cost: its complexity in N examples, C classes, d features, k budget.
    target_kinds: "class", "classes" (multi-label), "number" (regression).
    """

    name: str
    summary: str
    paper: str
    returns_weights: bool
    balanced_by_default: bool
    options: tuple[StrategyOptionView, ...]
    needs: tuple[str, ...] = ()
    cost: str = ""
    presets: tuple[StrategyPresetView, ...] = ()
    default_proxy: str = ""
    works_without_labels: bool = False
    target_kinds: tuple[str, ...] = ()


def describe() -> list[StrategyView]:
    """Every strategy of this version, in the order of listings."""
    from lipt.core.selection.select import STRATEGIES  # noqa: PLC0415 - torch
    from lipt.core.stages.resolve import works_without_labels  # noqa: PLC0415

    return [
        StrategyView(
            name=strategy.name,
            summary=strategy.summary,
            paper=strategy.paper,
            returns_weights=strategy.returns_weights,
            balanced_by_default=strategy.resolve_balance(None),
            options=tuple(
                StrategyOptionView(option.name, option.default, option.allowed, option.help)
                for option in strategy.options
            ),
            needs=tuple(strategy.needs_in_words),
            cost=str(strategy.cost),
            presets=tuple(
                StrategyPresetView(name, preset.summary)
                for name, preset in strategy.presets.items()
            ),
            default_proxy=strategy.proxy,
            works_without_labels=works_without_labels(strategy),
            target_kinds=tuple(sorted(strategy.kinds_of({}))),
        )
        for strategy in STRATEGIES.values()
    ]
