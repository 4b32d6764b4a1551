"""Every strategy by name. Messages and listings are made from this one dict.

To add a strategy: its file, its entry in the module of its family.
"""

from __future__ import annotations

from lipt.common.errors import UnknownNameError
from lipt.coordinator.selection.registry.dynamics import LEARNERS, SELF_SUPERVISED
from lipt.coordinator.selection.registry.geometry import COVERAGE, GEOMETRY
from lipt.coordinator.selection.registry.gradients import BILEVEL, GRADIENT_MATCHING
from lipt.coordinator.selection.registry.scores import BASELINES, SCORES
from lipt.coordinator.selection.strategy import Strategy

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        *BASELINES,
        *SCORES,
        *GRADIENT_MATCHING,
        *BILEVEL,
        *GEOMETRY,
        *COVERAGE,
        *LEARNERS,
        *SELF_SUPERVISED,
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
