"""Sharding: the validation split, and one disjoint shard of the rest for each learner.

Defaults that are too large for a small data set shrink to it. Where the data is mixed of several
sources, learners may have one source each, and two of them share it.

Source: LiPT (Ro et al. 2023), sections 3.1 and 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.config.run_config import (
    LearnersConfig,
    PruningConfig,
    ShardRule,
    ValidationConfig,
)
from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.errors import ConfigError
from lipt.data.groups import members, proportional_quotas
from lipt.data.sources.rows import MAX_SOURCES

# Learners of a source: whether both want the same mixture tells whether theta* is ready.
NUM_HALVES = 2
# The smallest useful minibatch: the number of learners shrinks before this.
_MIN_BATCH_SIZE = 16


@dataclass(frozen=True)
class Split:
    """The training and validation split: int64 ids, each ascending."""

    train_ids: Tensor
    validation_ids: Tensor


def split_validation(labels_N: Tensor, config: ValidationConfig, *, seed: int) -> Split:
    """Hold some examples of every class out of the training set.

    A class of n_c examples gives max(round(fraction * n_c), min_per_class), half rounded up, but
    never more than n_c // 2.
    """
    is_validation_N = torch.zeros(len(labels_N), dtype=torch.bool)
    for label, ids in enumerate(members(labels_N)):
        order = torch.randperm(len(ids), generator=derive_generator(seed, "validation", label))
        is_validation_N[ids[order[: _num_held_out(len(ids), config)]]] = True
    if not is_validation_N.any():
        raise ConfigError(
            f"none of the {len(labels_N)} examples can be held out for validation: no class has "
            "2 examples. Use a data set with at least 2 examples in a class."
        )
    train_ids = torch.nonzero(~is_validation_N).flatten()
    return Split(train_ids, torch.nonzero(is_validation_N).flatten())


def num_validation_examples(class_counts: Sequence[int], config: ValidationConfig) -> int:
    """Number of examples that `split_validation` takes from classes of these sizes."""
    return sum(_num_held_out(count, config) for count in class_counts)


def _num_held_out(num_examples: int, config: ValidationConfig) -> int:
    num_asked = max(math.floor(config.fraction * num_examples + 0.5), config.min_per_class)
    return min(num_asked, num_examples // 2)


def require_shards_fit(num_train: int, learners: LearnersConfig) -> None:
    """Reject shards that hold more examples together than the training split."""
    n, m, b = learners.num_learners, learners.num_minibatches, learners.batch_size
    if n * m * b <= num_train or learners.shards is ShardRule.SOURCE:
        return
    remedies = [
        f"learners.{name} to at most {largest}"
        for name, largest in (
            ("batch_size", num_train // (n * m)),
            ("num_learners", num_train // (m * b)),
        )
        if largest
    ] or ["learners.num_learners, learners.num_minibatches and learners.batch_size together"]
    raise ConfigError(
        f"{n} learners x {m} minibatches x {b} examples = {n * m * b} examples, but the training "
        f"split has {num_train}. Lower {', or '.join(remedies)}."
    )


def draw_shards(train_ids: Tensor, learners: LearnersConfig, *, seed: int) -> tuple[Tensor, ...]:
    """Draw one shard of M x B ids per learner, disjoint and without replacement."""
    require_shards_fit(len(train_ids), learners)
    size = learners.num_minibatches * learners.batch_size
    order = torch.randperm(len(train_ids), generator=derive_generator(seed, "shards"))
    return torch.split(train_ids[order[: learners.num_learners * size]], size)


def draw_shards_by_source(
    source_ids: Mapping[str, Tensor], learners: LearnersConfig, *, seed: int
) -> tuple[Tensor, ...]:
    """Draw a shard of M x B ids of every source, then another; none of a source without ids."""
    size, halves = learners.num_minibatches * learners.batch_size, range(NUM_HALVES)
    seeds = [derive_seed(seed, "shards", place) for place in range(len(source_ids))]
    drawn = list(zip(source_ids.values(), seeds, strict=True))
    return tuple(draw_half(ids, size, half, seed=own) for half in halves for ids, own in drawn)


def draw_half(ids: Tensor, size: int, half: int, *, seed: int) -> Tensor:
    """Draw a source's shard, disjoint from its other one if the source is large enough for both."""
    if not len(ids):
        return ids
    generator, total = torch.Generator().manual_seed(seed), NUM_HALVES * size
    return draw_by_shares([ids], torch.ones(1), total, generator=generator)[half * size :][:size]


def draw_by_shares(
    source_ids: Sequence[Tensor], shares_K: Tensor, total: int, *, generator: torch.Generator
) -> Tensor:
    """Draw ids by shares, without replacement while a source lasts, then again; shuffled."""
    drawn = [torch.empty(0, dtype=torch.int64)]
    for ids, count in zip(source_ids, proportional_quotas(shares_K.tolist(), total), strict=True):
        rounds = [
            torch.randperm(len(ids), generator=generator) for _ in range(-(-count // len(ids)))
        ]
        drawn.append(ids[torch.cat([drawn[0], *rounds])[:count]])
    ids = torch.cat(drawn)
    return ids[torch.randperm(len(ids), generator=generator)]


def draw_densities(num_learners: int, pruning: PruningConfig, *, seed: int) -> tuple[float, ...]:
    """Draw each learner's density, the share of weights kept, uniformly from its range."""
    generators = (derive_generator(seed, "density", index) for index in range(num_learners))
    shares = [torch.rand((), dtype=torch.float64, generator=drawn).item() for drawn in generators]
    low, high = pruning.density_min, pruning.density_max
    # high - low may have been rounded up.
    return tuple(min(high, low + (high - low) * share) for share in shares)


def fit_defaults(
    learners: LearnersConfig, num_train: int, *, sources: Sequence[str], fixed: Collection[str]
) -> tuple[LearnersConfig, str]:
    """Lower the batch size to 16 at least, then minibatches, then learners, until shards fit.

    By source there are two learners of each, and all are needed; ConfigError for another number,
    and for data without sources. Returns the settings, and the changes in words; empty for none.
    """
    if learners.shards is ShardRule.SOURCE or learners.worker_sources:
        return _fit_to_sources(learners, sources, fixed), ""
    n, m, b = learners.num_learners, learners.num_minibatches, learners.batch_size
    if n * m * b <= num_train:
        return learners, ""
    sizes = {"num_learners": n, "num_minibatches": m, "batch_size": b}

    def lower(name: str, floor: int) -> None:
        product = math.prod(value for other, value in sizes.items() if other != name)
        if name not in fixed:
            sizes[name] = min(sizes[name], max(floor, num_train // product))

    lower("batch_size", _MIN_BATCH_SIZE)
    lower("num_minibatches", 1)
    lower("num_learners", learners.min_learners if "min_learners" in fixed else 1)
    if sizes["num_learners"] * sizes["num_minibatches"] == 1:
        lower("batch_size", 1)
    # The number of learners caps `min_learners`.
    after = {"min_learners": min(learners.min_learners, sizes["num_learners"])} | sizes
    lowered = [
        f"learners.{name} {value} in place of {getattr(learners, name)}"
        for name, value in after.items()
        if value != getattr(learners, name)
    ]
    if not lowered:
        return learners, ""
    changes = (
        f"{n} learners x {m} minibatches x {b} examples = {n * m * b} are more than the "
        f"{num_train} of the training split, so defaults were lowered to fit: "
        f"{', '.join(lowered)}"
    )
    return learners.model_copy(update=after), changes


def _fit_to_sources(
    learners: LearnersConfig, sources: Sequence[str], fixed: Collection[str]
) -> LearnersConfig:
    names = [*sources, *learners.worker_sources]
    if not sources or learners.shards is ShardRule.RANDOM:
        said = "is source, but the data names no sources" if not sources else "is not source"
        raise ConfigError(
            f"learners.shards {said}. Name their column, csv:PATH?label=COLUMN&source=COLUMN, or "
            "folders, imagefolder:PATH?source=folder, and start a run with shards by source."
        )
    if len(set(names)) < len(names) or len(names) > MAX_SOURCES:
        raise ConfigError(
            f"learners.worker_sources and the data name {len(names)} sources, {len(set(names))} of "
            f"them different. Name each once, and at most {MAX_SOURCES}."
        )
    number = NUM_HALVES * len(names)
    if "num_learners" in fixed and learners.num_learners != number:
        raise ConfigError(
            f"learners.num_learners is {learners.num_learners}, and {len(names)} sources have "
            f"{NUM_HALVES} learners each, {number}. Leave it out."
        )
    return learners.model_copy(update={"num_learners": number, "min_learners": number})
