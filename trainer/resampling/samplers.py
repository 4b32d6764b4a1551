"""Samplers for your own DataLoader: a subset, or other examples in every epoch.

The main process draws, and DataLoader workers receive row numbers, so a subset may change under
`persistent_workers=True`. Every rank knows the whole order and takes every `num_ranks`-th example.

Shapes: N examples of an order, K of a subset, B of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor
from torch.utils.data import Sampler

from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError
from lipt.common.subsets import resolve_budget
from lipt.trainer.arguments import checked
from lipt.trainer.resampling.repeated_random import Cycles
from lipt.trainer.subsets.data import normalized_weights
from lipt.trainer.subsets.subset import Subset

# Policy for examples that do not divide evenly among the ranks.
Uneven = Literal["keep", "drop", "repeat"]

# Row numbers converted to Python ints at a time.
_BLOCK = 16_384


class Ranks(TypedDict, total=False):
    """The keywords of all samplers; see `SubsetSampler`."""

    rank: int
    num_ranks: int
    uneven: Uneven


class RankSampler(Sampler[int]):
    """One rank's part of every epoch."""

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
        ConfigError: `rank` is outside 0..num_ranks - 1, or the subset is empty or lacks the soft
            labels for `alpha`.
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
        self._dealt_weights_N = torch.ones(0)
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

    def __len__(self) -> int:
        return len(self._deal(torch.arange(len(self.subset))))

    def __iter__(self) -> Iterator[int]:
        # `set_epoch` may replace `self.subset` before the iterator ends.
        subset, order_K = self.subset, torch.arange(len(self.subset))
        if self._shuffle:
            generator = derive_generator(self._seed, "sampler-order", self._epoch)
            order_K = torch.randperm(len(subset), generator=generator)
        share_N = self._deal(order_K)
        self._dealt_weights_N = torch.ones(1).expand(len(share_N))
        if subset.is_weighted:
            weights_K = normalized_weights(torch.from_numpy(subset.weights.copy()))
            self._dealt_weights_N = weights_K[share_N]
        if self.alpha and subset.soft_labels is not None:
            self._dealt_soft_labels_NC = torch.from_numpy(subset.soft_labels[share_N.numpy()])
        for share_B in torch.split(share_N, _BLOCK):
            yield from subset.indices[share_B.numpy()].tolist()


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
        ranks: `rank`, `num_ranks` and `uneven`, as in `SubsetSampler`.

    Raises:
        BudgetError: none or both of `fraction` and `budget` are given, or one is out of range.
    """

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
        size = resolve_budget(fraction=fraction, budget=budget, num_examples=num_examples)
        labels_N = None if labels is None else torch.as_tensor(labels)
        super().__init__(**ranks)
        self._cycles = Cycles(num_examples, size, seed, labels_N)

    def __len__(self) -> int:
        return len(self._deal(torch.arange(self._cycles.budget)))

    def __iter__(self) -> Iterator[int]:
        for share_B in torch.split(self._deal(self._cycles.draw(self._epoch)), _BLOCK):
            yield from share_B.tolist()
