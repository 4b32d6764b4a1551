"""Every strategy by name. Messages and listings are made from this one dict.

To add a strategy: its file, its entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lipt.common.errors import UnknownNameError
from lipt.coordinator.selection.el2n import el2n
from lipt.coordinator.selection.grand import grand
from lipt.coordinator.selection.strategy import NOTHING, SIGNALS, Balance, Need, Strategy
from lipt.coordinator.selection.uniform import uniform
from lipt.coordinator.selection.uniform_per_class import uniform_per_class


def _grand_needs(options: Mapping[str, Any]) -> frozenset[Need]:
    return frozenset({Need.GRADIENT_NORMS}) if options["parameters"] == "all" else SIGNALS


_DATA_DIET = 'Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075)'

_BASELINES = (
    Strategy(
        name="uniform",
        function=uniform,
        summary="random examples",
        paper="",
        cost="N",
        balance=Balance.NEVER,
        needs=lambda _: NOTHING,
    ),
    Strategy(
        name="uniform_per_class",
        function=uniform_per_class,
        summary="random examples, equal shares of every class",
        paper="",
        cost="N",
        balance=Balance.ALWAYS,
        needs=lambda _: NOTHING,
    ),
)

_SCORES = (
    Strategy(
        name="el2n",
        function=el2n,
        summary="largest error norm |softmax - onehot|",
        paper=_DATA_DIET,
        cost="N C",
    ),
    Strategy(
        name="grand",
        function=grand,
        summary="largest gradient norm, by the last layer or by all parameters",
        paper=_DATA_DIET,
        cost="N (C + d)",
        needs=_grand_needs,
    ),
)

_GRADIENT_MATCHING = ()

_BILEVEL = ()

_GEOMETRY = ()

_COVERAGE = ()

_LEARNERS = ()

_SELF_SUPERVISED = ()

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        *_BASELINES,
        *_SCORES,
        *_GRADIENT_MATCHING,
        *_BILEVEL,
        *_GEOMETRY,
        *_COVERAGE,
        *_LEARNERS,
        *_SELF_SUPERVISED,
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
