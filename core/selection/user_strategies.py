"""Users' strategies: the decorator's fields and the function's signature and result, checked.

Kinds of targets, balance and cost may be given by name: kinds=["class"], cost="linear".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any, TypeVar

import torch

from lipt.common.errors import ConfigError, StrategyError
from lipt.common.requests import Proxy
from lipt.common.text import did_you_mean
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategy import Balance, Cost, Growth, Preset, Strategy
from lipt.data.targets.kinds import TargetKind

EnumT = TypeVar("EnumT", bound=StrEnum)

_EXAMPLE = '@lipt.strategy(summary="the last ones")'
_FIELDS = {field.name: field for field in fields(Strategy)[1:]}
_TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("summary", "paper", "proxy"), ("a text", lambda v: isinstance(v, str))),
    **dict.fromkeys(
        ("returns_weights", "rechecks", "averages", "is_random"),
        ("True or False", lambda v: type(v) is bool),
    ),
    "revision": ("a whole number from 0", lambda v: type(v) is int and v >= 0),
    **dict.fromkeys(("needs", "prepare"), ("a function", lambda v: v is None or callable(v))),
    "presets": (
        "a dictionary of lipt.core.selection.strategy.Preset by name",
        lambda v: (
            isinstance(v, Mapping) and all(isinstance(preset, Preset) for preset in v.values())
        ),
    ),
}


def user_strategy(function: Any, about: Mapping[str, Any]) -> Strategy:
    """The strategy of a function with the fields of a decorator; ConfigError for invalid ones."""
    given = dict(about)
    for name, value in about.items():
        if name not in _FIELDS:
            raise ConfigError(
                f"@lipt.strategy has no field {name!r}.{did_you_mean(name, _FIELDS)} Give some of: "
                f"{', '.join(_FIELDS)}."
            )
        words, fits = _TYPES.get(name, ("", lambda _: True))
        if not fits(value):
            raise ConfigError(f"@lipt.strategy: {name}={value!r:.60} is not {words}. {_EXAMPLE}")
    if not given.get("summary"):
        raise ConfigError(f"@lipt.strategy has no summary, what it keeps. Give one: {_EXAMPLE}")
    if "kinds" in given:
        given["kinds"] = _kinds(given["kinds"])
    if "balance" in given:
        (given["balance"],) = _members("balance", Balance, given["balance"], at_most=1)
    given["cost"] = _cost(given.get("cost", Cost()))
    if "proxy" in given:
        Proxy.parse(given["proxy"])
    if not inspect.isfunction(function):
        raise ConfigError(
            f"@lipt.strategy decorates a {type(function).__name__}, and needs a function of "
            f"(view, budget). Write {_EXAMPLE} above it."
        )
    given.setdefault("is_random", "seed" in inspect.signature(function).parameters)
    strategy = Strategy(function, **given)
    _require_signature(strategy)
    return strategy


def _cost(value: Any) -> Cost:
    if isinstance(value, Cost):
        return value
    (growth,) = _members("cost", Growth, value, at_most=1)
    return Cost(growth)


def _kinds(value: Any) -> Any:
    if not callable(value):
        return _members("kinds", TargetKind, value)

    @functools.wraps(value)
    def kinds(options: Mapping[str, Any]) -> frozenset[TargetKind]:
        return _members("kinds", TargetKind, value(options))

    return kinds


def _members(
    name: str, kind: type[EnumT], value: Any, *, at_most: int | None = None
) -> frozenset[EnumT]:
    names = [value] if isinstance(value, str) else value
    known = [member.value for member in kind]
    listed = isinstance(names, Collection) and all(text in known for text in names)
    if not listed or (at_most is not None and len(names) != at_most):
        raise ConfigError(
            f"@lipt.strategy: {name}={value!r:.60} is none of {', '.join(known)}. Give names, as "
            f'in {name}="{known[0]}".'
        )
    return frozenset(kind(text) for text in names)


def _require_signature(strategy: Strategy) -> None:
    for function in filter(None, (strategy.function, strategy.prepare)):
        name, last = strategy.name, ["budget"] * (function is strategy.function)
        parameters = inspect.signature(function).parameters.values()
        positional = [
            parameter
            for parameter in parameters
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        keyword_only = [parameter for parameter in parameters if parameter not in positional]
        required = [
            parameter.name for parameter in positional if parameter.default is parameter.empty
        ]
        keywords = all(parameter.kind is parameter.KEYWORD_ONLY for parameter in keyword_only)
        own = [
            parameter for parameter in keyword_only if parameter.name not in {"seed", "balanced"}
        ]
        views = required[: len(positional) - len(last)]
        if not views or required != views + last or not keywords:
            raise ConfigError(
                f"strategy {name!r} takes {inspect.signature(function)!s:.60}. Take "
                f"({', '.join(['view', *last])}), and options with defaults as keywords after a *."
            )
        for option in own:
            if option.default is option.empty or option.annotation is option.empty:
                raise ConfigError(
                    f"option {option.name} of strategy {name!r} lacks a type or a default. Write "
                    f"{option.name}: int = 0."
                )
    try:
        defaults = strategy.parse_options({})
        strategy.needs_for(defaults)
        taken = strategy.view_types(strategy.function, defaults)
        strategy.kinds_of({})
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the options of strategy {strategy.name!r} cannot be read: {error!s:.80}. Give each a "
            "type of text, number or choice, and `needs` for all options."
        ) from error
    if strategy.prepare is not None and strategy.prepared_type not in taken:
        raise ConfigError(
            f"`prepare` of strategy {strategy.name!r} returns no view that the function takes. "
            "Write the type of a parameter behind its ->."
        )


def require_selection(name: str, selection: Any, budget: int, num_examples: int) -> Selection:
    """The result of a strategy's function on the CPU; StrategyError if it is no selection."""
    if not isinstance(selection, Selection):
        raise StrategyError(
            f"strategy {name!r} returned a {type(selection).__name__}. Return lipt.Selection(rows, "
            "weights): int64 row numbers and a weight for each."
        )
    try:
        indices_K = torch.as_tensor(selection.indices_K).cpu()
        weights_K = torch.as_tensor(selection.weights_K).float().cpu()
    except (TypeError, ValueError, RuntimeError):
        indices_K = weights_K = torch.zeros(0)
    if indices_K.ndim != 1 or indices_K.is_floating_point() or indices_K.dtype == torch.bool:
        raise StrategyError(
            f"strategy {name!r} returned rows of {indices_K.dtype} and shape "
            f"{list(indices_K.shape)}. Return row numbers, a vector of int64."
        )
    indices_K = indices_K.long()
    num_distinct = len(torch.unique(indices_K))
    in_range = bool(((indices_K >= 0) & (indices_K < num_examples)).all())
    weighted = bool((weights_K.isfinite() & (weights_K >= 0)).all())
    enough = len(indices_K) == budget or (len(indices_K) < budget and selection.stopped_early)
    fits = weights_K.shape == indices_K.shape and num_distinct == len(indices_K)
    if not (fits and enough and in_range and weighted):
        raise StrategyError(
            f"strategy {name!r} answered with {len(indices_K)} rows ({num_distinct} distinct) and "
            f"{weights_K.numel()} weights, for a budget of {budget} among {num_examples} examples. "
            "Return so many rows from 0, each once, and finite weights from 0."
        )
    return replace(selection, indices_K=indices_K, weights_K=weights_K)
