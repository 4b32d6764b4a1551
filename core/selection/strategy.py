"""Strategy: an algorithm, and what the service has to know of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from lipt.common.errors import StrategyOptionError
from lipt.common.targets.kinds import ALL_KINDS, TargetKind
from lipt.core.selection import warm_up_option
from lipt.core.selection.options import (
    Option,
    Preset,
    find_preset,
    options_of,
    parse_options,
    takes_balanced,
    takes_seed,
)
from lipt.core.selection.selection import Selection
from lipt.core.signals.signals import Signals


class Balance(StrEnum):
    """Whether a strategy is applied to one class after another, each with an equal share."""

    BY_DEFAULT = "by_default"
    # Global as its authors have it, for which a share of each class is another strategy.
    ON_REQUEST = "on_request"
    NEVER = "never"
    ALWAYS = "always"


class Need(StrEnum):
    """What has to be computed for a strategy besides the labels."""

    # Errors and features: one forward pass over the data.
    SIGNALS = "signals"
    # Features alone, whoever they are from: the user, or the model as with SIGNALS.
    FEATURES = "features"
    # Of all parameters: one backward pass per example.
    GRADIENT_NORMS = "gradient norms"
    # The signals of the run's validation split.
    VALIDATION = "validation split"
    # One forward pass over the data for every snapshot of every learner.
    DYNAMICS = "learners"
    # Two feature matrices that the user supplies.
    PAIRED_FEATURES = "paired features"
    # Which images are near copies of each other.
    COPIES = "near copies"


# What is had of a model, whichever that is.
OF_A_MODEL = frozenset({Need.SIGNALS, Need.FEATURES, Need.VALIDATION, Need.GRADIENT_NORMS})
NOTHING: frozenset[Need] = frozenset()
SIGNALS = frozenset({Need.SIGNALS})
FEATURES = frozenset({Need.FEATURES})
DYNAMICS = frozenset({Need.DYNAMICS})
CLASSES = frozenset({TargetKind.CLASS})


@dataclass(frozen=True)
class Strategy:
    """A selection algorithm and what the service has to know of it.

    function: `f(signals, budget, *, options..., seed) -> Selection`, `seed` where it draws.
        Balanced, it sees one class at a time; one that takes `balanced` sees all classes in
        any case, and shares the budget among them as `class_quotas` does where it is true.
        Its name is the strategy's.
    cost: in the letters of the field: N examples, C classes, d features, k budget.
    needs: what has to be there; a function of all options' values where it depends on them.
    prepare: `f(signals, *, options..., seed) -> Signals`, applied once to all examples
        before they are split by class, for what a class alone cannot know.
    presets: values of options by one name, such as its paper's.
    revision: raised when the same request gets other examples, so that those which an older
        version chose and stored are no answer to it.
    rechecks: whether a subset of it stays in use, when the weights have changed, as long as
        a quadratic model of the loss around the old ones holds.
    proxy: what its signals are computed with where a request does not say.
    averages: whether its score is a mean over models, where there are several.
    kinds: of targets that it can choose by; a function of all options' values where it depends
        on them. Learners are asked about classes alone, so that who needs them does, too.
    """

    function: Callable[..., Selection]
    summary: str
    paper: str
    cost: str
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
        """Whether it takes no more than a look at every example, by its `cost`."""
        letters = set(re.findall("[A-Za-z]+", self.cost))
        return letters <= {"N", "C", "d", "log"} and "^" not in self.cost

    @property
    def name(self) -> str:
        """What users call it."""
        return self.function.__name__

    @cached_property
    def balances_itself(self) -> bool:
        """Whether the function sees all classes also where they get equal shares."""
        return takes_balanced(self.function)

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Its options, as the functions' signatures have them, and which model is looked at."""
        return (*self.own_options, *((warm_up_option.OPTION,) if self.can_be_warmed_up else ()))

    @cached_property
    def own_options(self) -> tuple[Option, ...]:
        """Those of the functions' signatures alone."""
        options = options_of(self.function)
        return options if self.prepare is None else options + options_of(self.prepare)

    @cached_property
    def can_be_warmed_up(self) -> bool:
        """Whether it looks at a model, which may then be one of an ordinary warm-up.

        Not one whose signals are of a head that a proxy teaches, or that asks the learners.
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
        return find_preset(self.name, self.presets, name)

    def prepared(self, signals: Signals, *, seed: int, options: Mapping[str, Any]) -> Signals:
        """The signals of all examples, as `function` wants them."""
        if self.prepare is None:
            return signals
        return self.prepare(signals, **_arguments(self.prepare, seed, options))

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
        arguments = _arguments(self.function, seed, options)
        if self.balances_itself:
            arguments["balanced"] = balanced
        return self.function(signals, budget, **arguments)

    def needs_for(self, options: Mapping[str, Any]) -> frozenset[Need]:
        """What it needs with the values of all options."""
        return self.needs(options) if callable(self.needs) else self.needs

    def default_needs(self) -> frozenset[Need]:
        """What it needs when no option is given."""
        return self.needs_for(self.parse_options({}))

    def kinds_for(self, options: Mapping[str, Any]) -> frozenset[TargetKind]:
        """What targets it can choose by with the values of all options."""
        kinds = self.kinds(options) if callable(self.kinds) else self.kinds
        return kinds & CLASSES if Need.DYNAMICS in self.needs_for(options) else kinds

    def default_kinds(self) -> frozenset[TargetKind]:
        """What targets it can choose by when no option is given."""
        return self.kinds_for(self.parse_options({}))

    @property
    def needs_in_words(self) -> list[str]:
        """What it needs when no option is given, for listings: never empty."""
        alone = "labels" if self.balance is Balance.ALWAYS else "nothing"
        return sorted(self.default_needs()) or [alone]

    def resolve_balance(self, balanced: bool | None) -> bool:  # noqa: FBT001 - the only argument
        """Whether the classes get equal shares; None asks for the default.

        Raises:
            StrategyOptionError: the strategy is always balanced, or never, and the
                opposite is asked for.
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


def _arguments(
    function: Callable[..., Any], seed: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    taken = {option.name: options[option.name] for option in options_of(function)}
    return taken | ({"seed": seed} if takes_seed(function) else {})
