"""Strategy: a selection algorithm, and what the service has to know of it."""

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
    """An input of a strategy besides the labels."""

    # Errors and features: one forward pass over the data.
    SIGNALS = "signals"
    # Features alone, the user's or the model's.
    FEATURES = "features"
    # Of all parameters: one backward pass per example.
    GRADIENT_NORMS = "gradient norms"
    # The signals of the run's validation split.
    VALIDATION = "validation split"
    # One forward pass over the data for every snapshot of every learner.
    DYNAMICS = "learners"
    # Two feature matrices that the user supplies.
    PAIRED_FEATURES = "paired features"
    # Which images are near-duplicates of each other.
    COPIES = "near copies"


# Inputs that need a model.
OF_A_MODEL = frozenset({Need.SIGNALS, Need.FEATURES, Need.VALIDATION, Need.GRADIENT_NORMS})
NOTHING: frozenset[Need] = frozenset()
SIGNALS = frozenset({Need.SIGNALS})
FEATURES = frozenset({Need.FEATURES})
DYNAMICS = frozenset({Need.DYNAMICS})
CLASSES = frozenset({TargetKind.CLASS})


def needs_of_space(options: Mapping[str, Any]) -> frozenset[Need]:
    """Errors only where gradients are compared."""
    return FEATURES if options["space"] == "features" else SIGNALS


@dataclass(frozen=True)
class Strategy:
    """A selection algorithm and what the service has to know of it.

    function: `f(signals, budget, *, options..., seed) -> Selection`, `seed` where it draws. Its
        name is the strategy's. Balanced, it sees one class at a time; one that takes `balanced`
        always sees all classes and shares the budget itself.
    summary: a phrase for listings. cost: such as `N^2 (C + d)`: N examples, C classes, d features,
    k budget. needs, kinds: its inputs and targets; functions of all options' values where they
    depend on them. prepare: `f(signals, *, options..., seed) -> Signals`, applied once to all
    examples before they
        are split by class.
    revision: raise it when the same request gets other examples than before, so that stored
        subsets of older versions are not reused.
    rechecks: whether a subset stays in use, when the weights have changed, as long as a
        quadratic model of the loss around the old ones holds.
    proxy: what its signals are computed with by default.
    averages: whether its score is a mean over models, where there are several.
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

    @property
    def is_linear(self) -> bool:
        """Whether its `cost` says that it looks at every example once."""
        letters = set(re.findall("[A-Za-z]+", self.cost))
        return bool(letters) and letters <= {"N", "C", "d", "log"} and "^" not in self.cost

    @property
    def name(self) -> str:
        """What users call it."""
        return self.function.__name__

    @cached_property
    def balances_itself(self) -> bool:
        """Whether the function sees all classes also where they get equal shares."""
        return "balanced" in inspect.signature(self.function).parameters

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """All options, the warm-up's among them where it can have one."""
        return (*self.own_options, *((WARM_UP_OPTION,) if self.can_be_warmed_up else ()))

    @cached_property
    def own_options(self) -> tuple[Option, ...]:
        """The options of the functions' signatures."""
        options = options_of(self.function)
        return options if self.prepare is None else options + options_of(self.prepare)

    @cached_property
    def can_be_warmed_up(self) -> bool:
        """Whether it looks at a model that an ordinary warm-up could train.

        Not one whose signals come from a proxy's head, or from the learners.
        """
        needs = self.needs_for(parse_options(self.name, self.own_options, {}))
        return bool(needs & OF_A_MODEL) and Need.DYNAMICS not in needs and self.proxy == "soup"

    def parse_options(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Every option's value, by name: the given text's, or the default.

        Raises:
            StrategyOptionError: an option does not exist, or its value is not allowed.
        """
        return parse_options(self.name, self.options, given)

    def preset(self, name: str) -> Preset:
        """The preset of that name; an empty one stands for the defaults.

        Raises:
            UnknownNameError: there is none.
        """
        if not name:
            return Preset("every option's default", {})
        if name not in self.presets:
            known = self.presets
            listed = f"Choose one of: {', '.join(known)}" if known else "It has none"
            raise UnknownNameError(
                f"strategy {self.name!r} has no preset {name!r}. {listed}, or give options by name."
            )
        return self.presets[name]

    def prepared(self, signals: Signals, *, seed: int, options: Mapping[str, Any]) -> Signals:
        """The signals of all examples, as `function` wants them."""
        if self.prepare is None:
            return signals
        return self.prepare(signals, **_arguments(self.prepare, {**options, "seed": seed}))

    def apply(
        self,
        signals: Signals,
        budget: int,
        *,
        balanced: bool,
        seed: int,
        options: Mapping[str, Any],
    ) -> Selection:
        """The function's answer, unchecked; `balanced` is for one that balances itself."""
        given = {**options, "seed": seed, "balanced": balanced}
        return self.function(signals, budget, **_arguments(self.function, given))

    def needs_for(self, options: Mapping[str, Any]) -> frozenset[Need]:
        """Its inputs with the values of all options."""
        return self.needs(options) if callable(self.needs) else self.needs

    def default_needs(self) -> frozenset[Need]:
        """Its inputs when no option is given."""
        return self.needs_for(self.parse_options({}))

    def kinds_for(self, options: Mapping[str, Any]) -> frozenset[TargetKind]:
        """The targets that it works with, with the values of all options."""
        kinds = self.kinds(options) if callable(self.kinds) else self.kinds
        return kinds & CLASSES if Need.DYNAMICS in self.needs_for(options) else kinds

    def default_kinds(self) -> frozenset[TargetKind]:
        """The targets that it works with when no option is given."""
        return self.kinds_for(self.parse_options({}))

    @property
    def needs_in_words(self) -> list[str]:
        """Its inputs when no option is given, for listings: never empty."""
        alone = "labels" if self.balance is Balance.ALWAYS else "nothing"
        return sorted(self.default_needs()) or [alone]

    def resolve_balance(self, balanced: bool | None) -> bool:  # noqa: FBT001 - the only argument
        """Whether the classes get equal shares; None asks for the default.

        Raises:
            StrategyOptionError: the opposite of always, or never, balanced is asked for.
        """
        if balanced and self.balance is Balance.NEVER:
            raise StrategyOptionError(
                f"strategy {self.name!r} is never balanced per class. Use uniform_per_class, or "
                "leave `balanced` unset."
            )
        if balanced is False and self.balance is Balance.ALWAYS:
            raise StrategyOptionError(
                f"strategy {self.name!r} is always balanced per class. Use uniform, or leave "
                "`balanced` unset."
            )
        by_default = self.balance in {Balance.BY_DEFAULT, Balance.ALWAYS}
        return by_default if balanced is None else balanced


def _arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in parameters}
