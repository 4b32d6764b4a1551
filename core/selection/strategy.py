"""Strategy: a selection algorithm and its description for the service."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from lipt.common.errors import StrategyOptionError, UnknownNameError
from lipt.common.targets.kinds import ALL_KINDS, TargetKind
from lipt.core.selection.options import WARM_UP_OPTION, Option, Preset, options_of, parse_options
from lipt.core.selection.selection import Selection
from lipt.core.signals.signals import Signals


class Balance(StrEnum):
    """Whether a strategy is applied to one class after another, each with an equal share."""

    BY_DEFAULT = "by_default"
    ON_REQUEST = "on_request"
    NEVER = "never"
    ALWAYS = "always"


class Need(StrEnum):
    """An input of a strategy besides the labels.

    SIGNALS: errors and features, one forward pass over the data. FEATURES: the user's or the
    model's. GRADIENT_NORMS: of all parameters, one backward pass per example. VALIDATION: signals
    of the run's validation split. DYNAMICS: a forward pass for every snapshot of every learner.
    PAIRED_FEATURES: two feature matrices of the user. COPIES: near-duplicate images.
    """

    SIGNALS = "signals"
    FEATURES = "features"
    GRADIENT_NORMS = "gradient norms"
    VALIDATION = "validation split"
    DYNAMICS = "learners"
    PAIRED_FEATURES = "paired features"
    COPIES = "near-duplicates"


# Inputs that need a model.
OF_A_MODEL = frozenset({Need.SIGNALS, Need.FEATURES, Need.VALIDATION, Need.GRADIENT_NORMS})
NOTHING: frozenset[Need] = frozenset()
SIGNALS = frozenset({Need.SIGNALS})
FEATURES = frozenset({Need.FEATURES})
DYNAMICS = frozenset({Need.DYNAMICS})
CLASSES = frozenset({TargetKind.CLASS})


def needs_of_space(options: Mapping[str, Any]) -> frozenset[Need]:
    return FEATURES if options["space"] == "features" else SIGNALS


@dataclass(frozen=True)
class Strategy:
    """A selection algorithm and its description for the service.

    function: `f(signals, budget, *, options..., seed) -> Selection`, with `seed` if it draws.
    Balanced, it sees one class at a time; one that takes `balanced` shares the budget itself.
    cost: such as `N^2 (C + d)`, with N examples, C classes, d features, k budget.
    needs, kinds: its inputs and targets, or functions of all options' values.
    prepare: `f(signals, *, options..., seed) -> Signals`, applied once to all examples before they
    are split by class.
    rechecks: whether a quadratic loss model decides if a subset stays in use at new weights.
    revision: raise it when the same request gets other examples: older subsets are not reused.
    proxy: computes its signals by default.
    averages: its score can be a mean over several models.
    """

    function: Callable[..., Selection]
    summary: str
    paper: str = ""
    cost: str = ""
    balance: Balance = Balance.BY_DEFAULT
    returns_weights: bool = False
    needs: frozenset[Need] | Callable[[Mapping[str, Any]], frozenset[Need]] = SIGNALS
    prepare: Callable[..., Signals] | None = None
    rechecks: bool = False
    presets: Mapping[str, Preset] = field(default_factory=dict)
    revision: int = 0
    proxy: str = "soup"
    averages: bool = False
    kinds: frozenset[TargetKind] | Callable[[Mapping[str, Any]], frozenset[TargetKind]] = ALL_KINDS

    def __call__(self, *arguments: Any, **options: Any) -> Selection:
        return self.function(*arguments, **options)

    @property
    def is_linear(self) -> bool:
        """Whether its cost is one pass over the examples."""
        letters = set(re.findall("[A-Za-z]+", self.cost))
        return bool(letters) and letters <= {"N", "C", "d", "log"} and "^" not in self.cost

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def balances_itself(self) -> bool:
        return "balanced" in inspect.signature(self.function).parameters

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The options of its signatures, and the warm-up's if it can have one."""
        return (*self.own_options, *((WARM_UP_OPTION,) if self.can_be_warmed_up else ()))

    @cached_property
    def own_options(self) -> tuple[Option, ...]:
        options = options_of(self.function)
        return options if self.prepare is None else options + options_of(self.prepare)

    @cached_property
    def can_be_warmed_up(self) -> bool:
        """Whether it uses a model's own head, which an ordinary warm-up could train."""
        needs = self.needs_for(parse_options(self.name, self.own_options, {}))
        return bool(needs & OF_A_MODEL) and Need.DYNAMICS not in needs and self.proxy == "soup"

    def parse_options(self, given: Mapping[str, str]) -> dict[str, Any]:
        return parse_options(self.name, self.options, given)

    def preset(self, name: str) -> Preset:
        """The preset of that name, empty for the defaults; UnknownNameError if there is none."""
        if not name:
            return Preset("every option's default", {})
        if name not in self.presets:
            listed = f"Choose one of: {', '.join(self.presets)}" if self.presets else "It has none"
            raise UnknownNameError(
                f"strategy {self.name!r} has no preset {name!r}. {listed}, or give options by name."
            )
        return self.presets[name]

    def needs_for(self, options: Mapping[str, Any]) -> frozenset[Need]:
        return self.needs(options) if callable(self.needs) else self.needs

    def needs_of(self, given: Mapping[str, str]) -> frozenset[Need]:
        return self.needs_for(self.parse_options(given))

    def kinds_of(self, given: Mapping[str, str]) -> frozenset[TargetKind]:
        options = self.parse_options(given)
        kinds = self.kinds(options) if callable(self.kinds) else self.kinds
        return kinds & CLASSES if Need.DYNAMICS in self.needs_for(options) else kinds

    @property
    def needs_in_words(self) -> list[str]:
        """Its inputs by default, for listings; never empty."""
        alone = "labels" if self.balance is Balance.ALWAYS else "nothing"
        return sorted(self.needs_of({})) or [alone]

    def resolve_balance(self, balanced: bool | None) -> bool:  # noqa: FBT001 - the only argument
        """Whether the classes get equal shares; StrategyOptionError if that is unsupported."""
        fixed = {Balance.NEVER: False, Balance.ALWAYS: True}.get(self.balance)
        if balanced is not None and fixed is not None and balanced != fixed:
            other = "uniform" if fixed else "uniform_per_class"
            raise StrategyOptionError(
                f"strategy {self.name!r} is {self.balance} balanced per class. Use {other}, or "
                "leave `balanced` unset."
            )
        return (
            self.balance in {Balance.BY_DEFAULT, Balance.ALWAYS} if balanced is None else balanced
        )


def built_in(**about: Any) -> Callable[[Callable[..., Selection]], Strategy]:
    """The decorated function as a strategy of this package."""
    return lambda function: Strategy(function, **about)
