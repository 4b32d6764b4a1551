"""Baselines: what people would do instead of choosing, by name and in words.

A fixed random subset is what a chosen one replaces where examples are paid for: labels,
storage, sharing. Where only training time is, people re-draw a random subset every epoch, or
train on everything for as long; both cost no more, and both are hard to beat.
"""

from __future__ import annotations

from collections.abc import Sequence

from lipt.common.errors import ConfigError

# The coordinator's strategies that look at nothing.
FIXED = ("uniform", "uniform_per_class")
REDRAWN = "redrawn"
EVERYTHING = "everything"

BASELINES = (*FIXED, REDRAWN, EVERYTHING)
# The end of a name: trained with as much of the soft labels as the subset recommends. What they
# gain is no merit of the selection, so that they stand beside the same without them.
SOFT = "+soft"


def require_baselines(names: Sequence[str]) -> None:
    """Refuse what is no baseline."""
    for name in names:
        if name not in BASELINES:
            raise ConfigError(f"there is no baseline {name!r}. Choose from: {', '.join(BASELINES)}")


def label(strategy: str) -> str:
    """The name of a strategy's or baseline's row, for readers who do not know the names."""
    if strategy.endswith(SOFT):
        return f"{label(strategy.removesuffix(SOFT))}, soft labels"
    if strategy in FIXED:
        return f"random ({strategy})"
    return "random re-drawn every epoch" if strategy == REDRAWN else strategy
