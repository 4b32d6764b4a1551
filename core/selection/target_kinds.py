"""Target kinds: which strategies can choose where examples have labels or numbers, no class.

Errors and features are there for all kinds of targets, as a last-layer gradient is residual times
feature. What reads probabilities of classes off them, or asks learners for these, needs classes.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipt.common.errors import InvalidRequestError
from lipt.common.targets.kinds import TargetKind, kinds_in_words
from lipt.core.selection.registry import STRATEGIES
from lipt.core.selection.strategy import Strategy


def require_kind(strategy: Strategy, options: Mapping[str, str], kind: TargetKind) -> None:
    """Refuse a strategy that needs other targets than there are.

    Args:
        strategy: what is to choose.
        options: texts by name, as given.
        kind: of the data's targets.

    Raises:
        InvalidRequestError: it cannot choose; with those that can.
        StrategyOptionError: an option does not exist, or its value is not allowed.
    """
    kinds = strategy.kinds_for(strategy.parse_options(options))
    if kind in kinds:
        return
    with_options = ", ".join(f"{name}={value}" for name, value in sorted(options.items()))
    given = f" with {with_options}" if with_options else ""
    able = (name for name, known in STRATEGIES.items() if kind in known.default_kinds())
    raise InvalidRequestError(
        f"strategy {strategy.name!r}{given} works with {kinds_in_words(kinds)} data, and the "
        f"coordinator's is {kind.words}. Choose one of: {', '.join(able)}."
    )
