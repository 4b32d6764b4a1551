"""Samplers for your own DataLoader: a subset, or other examples in every epoch.

The main process draws, and DataLoader workers receive row numbers, so a subset may change under
`persistent_workers=True`. Every rank knows the whole order and takes every `num_ranks`-th example.

With other random examples in every epoch (RS2), training takes as many steps as on a fixed subset
of the same budget, and uses more of the data. `fit` and `RepeatedRandomSampler` share the draws.

Shapes: N examples of an order, K of a subset or budget, B of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from lipt.common.computation import thread_defaults
from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError
from lipt.common.requests import Budget, require_budget
from lipt.common.subsets import subset_digest
from lipt.data.loading import open_data
from lipt.trainer.arguments import checked
from lipt.trainer.subsets.data import normalized_weights
from lipt.trainer.subsets.subset import Subset

# Policy for examples that do not divide evenly among the ranks.
Uneven = Literal["keep", "drop", "repeat"]

# Row numbers converted to Python ints at a time.
_BLOCK = 16_384


class Ranks(TypedDict, total=False):
    """The keywords of all samplers; see `SubsetSampler`."""

    rank: int
    """This process's number, from 0."""
    num_ranks: int
    """Number of processes."""
    uneven: Uneven
    """Policy for examples that do not divide evenly among them."""


class RankSampler(Sampler[int]):
    """One rank's part of every epoch."""

    @checked
    def __init__(self, rank: int = 0, num_ranks: int = 1, uneven: Uneven = "keep") -> None:
        if not 0 <= rank < num_ranks:
            raise ConfigError(
                f"rank {rank} is not one of {num_ranks}. Ranks count from 0 to "
                f"num_ranks - 1, here {num_ranks - 1}."
            )
        self._rank, self.num_ranks = rank, num_ranks
        self._uneven: Uneven = uneven
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next `iter`; call it before each epoch, on every rank."""
        self._epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint's state, for `torch.save`."""
        return {"epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, with `set_epoch` of the same epoch or the next."""
        self._epoch = state["epoch"]

    def _deal(self, order_N: Tensor) -> Tensor:
        """Return the rank's part of an order that all ranks share."""
        left_over = len(order_N) % self.num_ranks
        if left_over and self._uneven == "drop":
            order_N = order_N[: len(order_N) - left_over]
        elif left_over and self._uneven == "repeat":
            missing = self.num_ranks - left_over
            repeats = -(-missing // len(order_N))
            order_N = torch.cat([order_N, order_N.repeat(repeats)[:missing]])
        return order_N[self._rank :: self.num_ranks]


class SubsetSampler(RankSampler):
    """A subset's indices, in a new order every epoch.

    Args:
        subset: the subset.
        shuffle: whether to shuffle; ascending indices otherwise.
        seed: seed of the order, with the epoch; the same on every rank.
        alpha: the soft label's share of the target, in the Lightning and Hugging Face callbacks; 0
            trains on labels alone.

    Keyword Args:
        rank (int): this process' rank, from 0.
        num_ranks (int): number of processes that train together.
        uneven (str): policy where `num_ranks` does not divide the examples. "keep" gives the first
            ranks one more, "drop" leaves out the last examples, and "repeat" repeats the first
            ones, as `DistributedSampler` does. Synchronized training needs "drop" or "repeat".

    Raises:
        ConfigError: an argument is none of the allowed values, `rank` is outside
            0..num_ranks - 1, or the subset is empty or lacks the soft labels for `alpha`.
    """

    @checked
    def __init__(
        self,
        subset: Subset,
        *,
        shuffle: bool = True,
        seed: int = 0,
        alpha: float = 0.0,
        **ranks: Unpack[Ranks],
    ) -> None:
        super().__init__(**ranks)
        if not len(subset):
            raise ConfigError("the subset is empty, so there is nothing to draw. Get another.")
        if alpha and subset.soft_labels is None:
            raise ConfigError(
                f"alpha is {alpha}, and the subset has no soft labels. Get it with "
                "soft_labels=True."
            )
        self.subset, self.alpha = subset, alpha
        self._shuffle, self._seed = shuffle, seed
        self._dealt_weights_N = torch.ones(0, device="cpu")
        self._dealt_soft_labels_NC: Tensor | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether the current epoch's examples have different weights."""
        return bool((self._dealt_weights_N != self._dealt_weights_N[:1]).any())

    def weights(self, batch: int, batch_size: int) -> Tensor:
        """Return a batch's weights in the current epoch, float32, of mean 1 over the subset."""
        return self._dealt_weights_N[batch * batch_size : (batch + 1) * batch_size]

    def soft_labels(self, batch: int, batch_size: int) -> Tensor | None:
        """Return a batch's soft labels in the current epoch; None where `alpha` is 0."""
        dealt_NC = self._dealt_soft_labels_NC
        return None if dealt_NC is None else dealt_NC[batch * batch_size : (batch + 1) * batch_size]

    @thread_defaults()
    def __len__(self) -> int:
        return len(self._deal(torch.arange(len(self.subset))))

    def __iter__(self) -> Iterator[int]:
        # `set_epoch` may replace `self.subset` before the iterator ends.
        subset = self.subset
        share_N = self._dealt(subset)
        for share_B in torch.split(share_N, _BLOCK):
            yield from subset.indices[share_B.numpy()].tolist()

    @thread_defaults()
    def _dealt(self, subset: Subset) -> Tensor:
        """Deal the epoch's positions in the subset, with their weights and soft labels."""
        order_K = torch.arange(len(subset))
        if self._shuffle:
            generator = derive_generator(self._seed, "sampler-order", self._epoch)
            order_K = torch.randperm(len(subset), generator=generator)
        share_N = self._deal(order_K)
        self._dealt_weights_N = torch.ones(1, dtype=torch.float32).expand(len(share_N))
        if subset.is_weighted:
            weights_K = normalized_weights(subset)
            self._dealt_weights_N = weights_K[share_N]
        if self.alpha and subset.soft_labels is not None:
            self._dealt_soft_labels_NC = torch.from_numpy(subset.soft_labels[share_N.numpy()])
        return share_N


class Cycles:
    """Random examples in every epoch, without replacement across epochs.

    Epochs take consecutive parts of a permutation. An epoch that reaches its end continues in the
    next permutation and skips its own examples. (The authors' code repeats the old permutation's
    start.) With `labels_N`, every epoch is stratified by class.
    Source: Okanovic et al. 2024, "Repeated Random Sampling for Minimizing the Time-to-Accuracy of
    Learning" (arXiv:2305.18424), RS2 without replacement.
    """

    def __init__(
        self, num_examples: int, budget: int, seed: int, labels_N: Tensor | None = None
    ) -> None:
        require_budget(budget, num_examples)
        self._num_examples, self.budget, self._seed = num_examples, budget, seed
        self._labels_N = labels_N
        # The last cycle and its order.
        self._known = -1, torch.empty(0, dtype=torch.int64, device="cpu")

    @thread_defaults()
    def draw(self, epoch: int) -> Tensor:
        cycle, start = divmod(epoch * self.budget, self._num_examples)
        here = self._order(cycle)[start : start + self.budget]
        missing = self.budget - len(here)
        return torch.cat([here, self._order(cycle + 1)[:missing]]) if missing else here

    def _order(self, cycle: int) -> Tensor:
        known, order_N = self._known
        if known != cycle:
            # A shared epoch reorders only a cycle's first K examples. So the end of a cycle of
            # at least two budgets does not depend on earlier cycles.
            first = max(cycle - 1, 0) if 2 * self.budget <= self._num_examples else 0
            if not first <= known < cycle:
                known, order_N = first, self._permutation(first)
            for following in range(known + 1, cycle + 1):
                order_N = self._following(order_N, following)
            self._known = cycle, order_N
        return order_N

    def _following(self, order_N: Tensor, cycle: int) -> Tensor:
        next_N = self._permutation(cycle)
        num_left = cycle * self._num_examples % self.budget
        if not num_left:
            return next_N
        lent = next_N[~torch.isin(next_N, order_N[-num_left:])][: self.budget - num_left]
        return torch.cat([lent, next_N[~torch.isin(next_N, lent)]])

    def _permutation(self, cycle: int) -> Tensor:
        generator = derive_generator(self._seed, "redrawing-cycle", cycle)
        order_N = torch.randperm(self._num_examples, generator=generator)
        return order_N if self._labels_N is None else _spread(order_N, self._labels_N, generator)


def _spread(order_N: Tensor, labels_N: Tensor, generator: torch.Generator) -> Tensor:
    """Spread each class evenly over an order; the order within a class stays.

    Example j of a class of n goes to position (j + u) / n, with one random u in [0, 1) per class.
    """
    classes, class_of_N = torch.unique(labels_N[order_N], return_inverse=True)
    offsets_C = torch.rand(len(classes), generator=generator, dtype=torch.float64)
    counts_C = torch.bincount(class_of_N, minlength=len(classes))
    by_class_N = class_of_N.argsort(stable=True)
    firsts_C = counts_C.cumsum(0) - counts_C
    sorted_class_N = class_of_N[by_class_N]
    ranks_N = torch.arange(len(order_N)) - firsts_C[sorted_class_N]
    places_N = (ranks_N + offsets_C[sorted_class_N]) / counts_C[sorted_class_N]
    return order_N[by_class_N[places_N.argsort(stable=True)]]


class RepeatedRandom:
    """Source for `fit`: other examples in every epoch, for the steps of a subset of `budget`.

    Args:
        train: the data set, as in `fit`; every epoch has each class's share.
        budget: number of examples.
        seed: seed of the draws.

    Raises:
        BudgetError: `budget` is not one of 1 to the number of examples.
    """

    @checked
    def __init__(self, train: Any, budget: int, seed: int) -> None:
        train = open_data(train)
        require_budget(budget, len(train))
        self.identity: Mapping[str, Any] = {"resample": "random", "budget": budget, "seed": seed}
        self.num_epochs: int | None = None
        self._cycles = Cycles(len(train), budget, seed, train.labels_N)
        self._fingerprint = train.fingerprint
        self.subset = self.before_epoch(0)

    def before_epoch(self, epoch: int) -> Subset:
        """Return the subset of an epoch, counted from 0."""
        indices = self._cycles.draw(epoch).sort().values.numpy()
        weights = np.ones(len(indices), np.float32)
        digest = subset_digest(indices, weights)
        self.subset = Subset(indices, weights, self._fingerprint, digest, "resampled_random")
        return self.subset


class RepeatedRandomSampler(RankSampler):
    """Random examples, resampled every epoch; every example is drawn once before any repeats.

    RS2 without replacement (Okanovic et al. 2024, arXiv:2305.18424).

        sampler = RepeatedRandomSampler(len(data), fraction=0.1)
        loader = DataLoader(data, batch_size=256, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)
            for images, labels in loader: ...

    Args:
        num_examples: size of the data set.
        fraction: share of the data set per epoch; give this or `budget`.
        budget: examples per epoch.
        seed: seed of the draws; the same on every rank.
        labels: one integer per example; stratifies every epoch by class.

    Raises:
        BudgetError: none or both of `fraction` and `budget` are given, or one is out of range.
        ConfigError: another argument is none of the allowed values.
    """

    @checked
    @thread_defaults()
    def __init__(
        self,
        num_examples: int,
        *,
        fraction: float | None = None,
        budget: int | None = None,
        seed: int = 0,
        labels: Tensor | None = None,
        **ranks: Unpack[Ranks],
    ) -> None:
        size = Budget(fraction, budget).of(num_examples)
        try:
            labels_N = None if labels is None else torch.as_tensor(labels)
        except (TypeError, ValueError, RuntimeError):
            labels_N = torch.zeros(0)
        if labels_N is not None and labels_N.shape != (num_examples,):
            raise ConfigError(
                f"labels is a {type(labels).__name__} of no {num_examples} numbers. Give the class "
                "number of each example, such as dataset.labels_N."
            )
        super().__init__(**ranks)
        self._cycles = Cycles(num_examples, size, seed, labels_N)

    @thread_defaults()
    def __len__(self) -> int:
        return len(self._deal(torch.arange(self._cycles.budget)))

    def __iter__(self) -> Iterator[int]:
        for share_B in torch.split(self._deal(self._cycles.draw(self._epoch)), _BLOCK):
            yield from share_B.tolist()
