"""Every strategy by name. Messages and listings are made from this one dict.

A strategy is a plain function `name(signals, budget, *, options...) -> Selection`, with
a keyword `seed` where it draws. To add one: its file, its entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from lipt.common.errors import StrategyOptionError, UnknownNameError
from lipt.coordinator.selection.el2n import el2n
from lipt.coordinator.selection.grand import grand
from lipt.coordinator.selection.options import Option, options_of, parse_options, takes_seed
from lipt.coordinator.selection.selection import Selection
from lipt.coordinator.selection.uniform import uniform
from lipt.coordinator.selection.uniform_per_class import uniform_per_class


class Balance(StrEnum):
    """Whether a strategy is applied to one class after another, each with an equal share."""

    BY_DEFAULT = "by_default"
    NEVER = "never"
    ALWAYS = "always"


class Need(StrEnum):
    """What has to be computed for a strategy besides the labels."""

    # Errors and features: one forward pass over the data.
    SIGNALS = "signals"
    # Of all parameters: one backward pass per example.
    GRADIENT_NORMS = "gradient_norms"


_NOTHING: frozenset[Need] = frozenset()
_SIGNALS = frozenset({Need.SIGNALS})


@dataclass(frozen=True)
class Strategy:
    """A selection algorithm and what the service has to know of it."""

    name: str
    function: Callable[..., Selection]
    summary: str
    paper: str
    balance: Balance
    returns_weights: bool
    # From the values of all options.
    needs: Callable[[Mapping[str, Any]], frozenset[Need]]

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Its options, as the function's signature has them."""
        return options_of(self.function)

    @cached_property
    def takes_seed(self) -> bool:
        """Whether it draws at random."""
        return takes_seed(self.function)

    def parse_options(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Every option's value, by name: the given text's, or the default.

        Raises:
            StrategyOptionError: an option does not exist, or its value is not allowed.
        """
        return parse_options(self.name, self.options, given)

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
        return self.balance is not Balance.NEVER if balanced is None else balanced


def _grand_needs(options: Mapping[str, Any]) -> frozenset[Need]:
    return frozenset({Need.GRADIENT_NORMS}) if options["parameters"] == "all" else _SIGNALS


_DATA_DIET = 'Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075)'

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            name="uniform",
            function=uniform,
            summary="random examples",
            paper="",
            balance=Balance.NEVER,
            returns_weights=False,
            needs=lambda _: _NOTHING,
        ),
        Strategy(
            name="uniform_per_class",
            function=uniform_per_class,
            summary="random examples, equal shares of every class",
            paper="",
            balance=Balance.ALWAYS,
            returns_weights=False,
            needs=lambda _: _NOTHING,
        ),
        Strategy(
            name="el2n",
            function=el2n,
            summary="largest error norm |softmax - onehot|",
            paper=_DATA_DIET,
            balance=Balance.BY_DEFAULT,
            returns_weights=False,
            needs=lambda _: _SIGNALS,
        ),
        Strategy(
            name="grand",
            function=grand,
            summary="largest gradient norm, by the last layer or by all parameters",
            paper=_DATA_DIET,
            balance=Balance.BY_DEFAULT,
            returns_weights=False,
            needs=_grand_needs,
        ),
    )
}


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        UnknownNameError: there is none; the message lists all.
    """
    if name not in STRATEGIES:
        raise UnknownNameError(
            f"there is no strategy {name!r}. Choose one of: {', '.join(STRATEGIES)}."
        )
    return STRATEGIES[name]
