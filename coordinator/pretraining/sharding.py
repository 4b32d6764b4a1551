"""Sharding: the validation split, and one disjoint shard of the rest for each learner.

Step 2 of the pipeline (Ro et al. 2023, section 3.1). Each learner's draws have
an index of their own, so that learner i gets the same density whatever the
number of learners is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.determinism.seeding import derive_generator
from lipt.common.errors import ConfigError


@dataclass(frozen=True)
class Split:
    """The training set, cut in two: int64 ids, each ascending."""

    train_ids: Tensor
    validation_ids: Tensor


def split_validation(labels_N: Tensor, *, fraction: float, min_per_class: int, seed: int) -> Split:
    """Hold some examples of every class out of the training set.

    A class of n_c examples gives max(round(fraction * n_c), min_per_class), half
    rounded up, but never more than n_c // 2.

    Args:
        labels_N: int64 class of every example; the id of an example is its position.
        fraction: share held out, in (0, 0.5].
        min_per_class: fewest examples held out of a class that has twice as many.
        seed: draws are the same for the same seed and labels.

    Raises:
        ConfigError: no class has two examples, so that nothing can be held out.
    """
    held_out = []
    for label in torch.unique(labels_N).tolist():
        ids = torch.nonzero(labels_N == label).flatten()
        number = _num_held_out(len(ids), fraction=fraction, min_per_class=min_per_class)
        order = torch.randperm(len(ids), generator=derive_generator(seed, "validation", label))
        held_out.append(ids[order[:number]])
    is_validation_N = torch.zeros(len(labels_N), dtype=torch.bool)
    if held_out:
        is_validation_N[torch.cat(held_out)] = True
    if not is_validation_N.any():
        raise ConfigError(
            f"none of the {len(labels_N)} examples can be held out for validation: no class has "
            "2 examples. Use a data set with at least 2 examples in a class."
        )
    return Split(
        train_ids=torch.nonzero(~is_validation_N).flatten(),
        validation_ids=torch.nonzero(is_validation_N).flatten(),
    )


def num_validation_examples(
    class_counts: Sequence[int], *, fraction: float, min_per_class: int
) -> int:
    """How many examples `split_validation` holds out of classes of these sizes."""
    return sum(
        _num_held_out(count, fraction=fraction, min_per_class=min_per_class)
        for count in class_counts
    )


def _num_held_out(num_examples: int, *, fraction: float, min_per_class: int) -> int:
    wanted = max(math.floor(fraction * num_examples + 0.5), min_per_class)
    return min(wanted, num_examples // 2)


def require_shards_fit(
    num_train: int, *, num_learners: int, num_minibatches: int, batch_size: int
) -> None:
    """Refuse shards that hold more examples together than the training split.

    Raises:
        ConfigError: n x M x B is over `num_train`; names the largest batch size, or
            else the largest number of learners, that would fit.
    """
    needed = num_learners * num_minibatches * batch_size
    if needed <= num_train:
        return
    remedies = [
        f"learners.{name} to at most {largest}"
        for name, largest in (
            ("batch_size", num_train // (num_learners * num_minibatches)),
            ("num_learners", num_train // (num_minibatches * batch_size)),
        )
        if largest
    ] or ["learners.num_learners, learners.num_minibatches and learners.batch_size together"]
    raise ConfigError(
        f"{num_learners} learners x {num_minibatches} minibatches x {batch_size} examples = "
        f"{needed} examples, but the training split has {num_train}. "
        f"Lower {', or '.join(remedies)}."
    )


def draw_shards(
    train_ids: Tensor, *, num_learners: int, num_minibatches: int, batch_size: int, seed: int
) -> tuple[Tensor, ...]:
    """Draw one shard per learner, disjoint and without replacement.

    Args:
        train_ids: int64 ids to draw from, distinct.
        num_learners: n shards.
        num_minibatches: M minibatches per shard.
        batch_size: B examples per minibatch.
        seed: draws are the same for the same seed and ids.

    Returns:
        n tensors of M x B int64 ids, in the order drawn; the first shards are the
        same for every n.

    Raises:
        ConfigError: n x M x B is more than there are ids.
    """
    require_shards_fit(
        len(train_ids),
        num_learners=num_learners,
        num_minibatches=num_minibatches,
        batch_size=batch_size,
    )
    size = num_minibatches * batch_size
    order = torch.randperm(len(train_ids), generator=derive_generator(seed, "shards"))
    return torch.split(train_ids[order[: num_learners * size]], size)


def draw_densities(num_learners: int, low: float, high: float, seed: int) -> tuple[float, ...]:
    """Draw each learner's density, the share of weights kept, uniformly from [low, high].

    Source: Ro et al. 2023, section 3.3, with [0.85, 0.95].
    """
    generators = (derive_generator(seed, "density", index) for index in range(num_learners))
    shares = [torch.rand((), dtype=torch.float64, generator=drawn).item() for drawn in generators]
    # high - low may have been rounded up.
    return tuple(min(high, low + (high - low) * share) for share in shares)
