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


def require_baselines(names: Sequence[str]) -> None:
    """Refuse what is no baseline."""
    for name in names:
        if name not in BASELINES:
            raise ConfigError(f"there is no baseline {name!r}. Choose from: {', '.join(BASELINES)}")


def label(strategy: str, every: int) -> str:
    """What a row of a table is called, for readers who do not know the names.

    Args:
        strategy: a strategy's or a baseline's name.
        every: epochs after which it was drawn or chosen again; 0 where it never was.
    """
    epochs = "epoch" if every == 1 else f"{every} epochs"
    if strategy in FIXED:
        return f"random ({strategy})"
    if strategy == REDRAWN:
        return f"random re-drawn every {epochs}"
    return f"{strategy} chosen again every {epochs}" if every else strategy
