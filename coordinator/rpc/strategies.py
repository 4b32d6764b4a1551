"""Strategies as messages, for ListStrategies and `lipt strategies`."""

from __future__ import annotations

from lipt.coordinator.rpc.messages import message_of
from lipt.core.selection.select import STRATEGIES
from lipt.core.selection.strategy import Strategy
from lipt.core.stages.request import works_without_labels
from lipt.v1 import subset_pb2 as pb


def describe_strategies() -> pb.ListStrategiesResponse:
    """Describe every strategy of this version."""
    return pb.ListStrategiesResponse(strategies=map(_describe, STRATEGIES.values()))


def _describe(strategy: Strategy) -> pb.Strategy:
    options = [
        message_of(
            pb.StrategyOption, option, default_value=option.default, allowed_values=option.allowed
        )
        for option in strategy.options
    ]
    presets = [
        pb.StrategyPreset(name=name, summary=preset.summary)
        for name, preset in strategy.presets.items()
    ]
    return message_of(
        pb.Strategy,
        strategy,
        cost=str(strategy.cost),
        balanced_by_default=strategy.resolve_balance(None),
        options=options,
        needs=strategy.needs_in_words,
        presets=presets,
        default_proxy=strategy.proxy,
        works_without_labels=works_without_labels(strategy),
        target_kinds=sorted(strategy.kinds_of({})),
    )
