"""Fitting: defaults that are too large for a small data set shrink to it; a pure function.

What a run's request has set is never touched: where that does not fit, the run is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lipt.common.config.run_config import LearnersConfig

# Fewer examples than this are no minibatch to learn from: before that there are fewer learners.
_MIN_BATCH_SIZE = 16


@dataclass(frozen=True)
class Fitted:
    """Settings of learners whose shards fit, and what was changed for that; empty for nothing."""

    learners: LearnersConfig
    said: str = ""


def fit_defaults(learners: LearnersConfig, num_train: int, *, asked: Collection[str]) -> Fitted:
    """Lower what nobody asked for until n x M x B examples are in the training split.

    First the batch size, down to 16 examples, then the number of learners, then that of their
    minibatches, each no further than it has to. A single minibatch takes what there is.
    """
    sizes = {
        name: getattr(learners, name) for name in ("num_learners", "num_minibatches", "batch_size")
    }
    n, m, b = sizes.values()
    if n * m * b <= num_train:
        return Fitted(learners)
    floors = {
        "batch_size": _MIN_BATCH_SIZE,
        "num_learners": learners.min_learners if "min_learners" in asked else 1,
        "num_minibatches": 1,
    }
    for name, floor in floors.items():
        if name not in asked:
            sizes[name] = _lowered(name, sizes, num_train, floor)
    if "batch_size" not in asked and sizes["num_learners"] * sizes["num_minibatches"] == 1:
        sizes["batch_size"] = _lowered("batch_size", sizes, num_train, 1)
    before = {"min_learners": learners.min_learners} | {
        name: getattr(learners, name) for name in sizes
    }
    # So many learners cannot arrive any more.
    after = {"min_learners": min(learners.min_learners, sizes["num_learners"])} | sizes
    changes = [
        f"learners.{name} {after[name]} in place of {before[name]}"
        for name in after
        if after[name] != before[name]
    ]
    if not changes:
        return Fitted(learners)
    return Fitted(
        learners.model_copy(update=after),
        f"{n} learners x {m} minibatches x {b} examples = {n * m * b} are more than the "
        f"{num_train} of the training split, so defaults were lowered to fit: "
        f"{', '.join(changes)}",
    )


def _lowered(name: str, sizes: dict[str, int], num_train: int, floor: int) -> int:
    others = 1
    for other, value in sizes.items():
        others *= 1 if other == name else value
    return min(sizes[name], max(floor, num_train // others))
