"""Samplers that hand a subset to a DataLoader, the same one on every rank.

A sampler runs in the process that owns the DataLoader, so a subset may change between epochs under
`persistent_workers=True` too. All ranks know an epoch's whole order, and each takes every
`num_ranks`-th example of it.

Shapes: N examples of the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError
from lipt.trainer.reselection.reselection import Reselection, SelectionOptions
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.subsets.weighted import normalized_weights

if TYPE_CHECKING:
    from lipt.trainer.client.client import Client


# What happens to the examples that do not divide evenly among the ranks.
Uneven = Literal["keep", "drop", "repeat"]

# This many row numbers become Python's ints at a time.
_BLOCK = 16_384


def deal(order_N: Tensor, rank: int, num_ranks: int, uneven: Uneven) -> Tensor:
    """A rank's part of an order.

    Args:
        order_N: the same on every rank.
        rank: from 0.
        num_ranks: how many there are.
        uneven: where N does not divide by `num_ranks`: "keep" gives the first ranks one
            example more, "drop" leaves the order's last examples out, and "repeat" gives
            the order's first ones to the other ranks again.
    """
    left_over = len(order_N) % num_ranks
    if left_over and uneven == "drop":
        order_N = order_N[: len(order_N) - left_over]
    elif left_over and uneven == "repeat":
        missing = num_ranks - left_over
        repeats = -(-missing // len(order_N))
        order_N = torch.cat([order_N, order_N.repeat(repeats)[:missing]])
    return order_N[rank::num_ranks]


def num_dealt(num_examples: int, rank: int, num_ranks: int, uneven: Uneven) -> int:
    """The length of `deal`'s part, without an order."""
    fewest, left_over = divmod(num_examples, num_ranks)
    one_more = bool(left_over) if uneven == "repeat" else uneven == "keep" and rank < left_over
    return fewest + one_more


def in_blocks(order_N: Tensor) -> Iterator[Tensor]:
    """An order in small pieces, to make Python's ints of."""
    for start in range(0, len(order_N), _BLOCK):
        yield order_N[start : start + _BLOCK]


def require_rank(rank: int, num_ranks: int) -> None:
    """Refuse a rank outside 0..num_ranks - 1.

    Raises:
        ConfigError: it is outside.
    """
    if not 0 <= rank < num_ranks:
        raise ConfigError(
            f"rank {rank} is not one of {num_ranks}. Ranks count from 0 to "
            f"num_ranks - 1, here {num_ranks - 1}."
        )


class SubsetSampler(Sampler[int]):
    """A subset's indices in a new order every epoch.

    Args:
        subset: whose indices.
        shuffle: whether the order changes; ascending otherwise.
        seed: of the order, together with the epoch; the same on every rank.
        rank: which of the processes this is, from 0.
        num_ranks: how many processes train together.
        uneven: where the subset does not divide by `num_ranks`: "keep" gives the first
            ranks one example more, "drop" leaves the last examples of the order out, and
            "repeat" gives its first ones to the other ranks again, as `DistributedSampler`
            does. Synchronized training needs one of the last two.
        soft_labels: alpha, the soft label's share of a training target, for the callbacks of
            Lightning and Hugging Face; 0 trains on labels alone.

    Raises:
        ConfigError: `rank` is not one of `num_ranks`, or the subset is empty, or has no soft
            labels where they are to be trained on.
    """

    def __init__(
        self,
        subset: Subset,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
        uneven: Uneven = "keep",
        soft_labels: float = 0.0,
    ) -> None:
        require_rank(rank, num_ranks)
        if not len(subset):
            raise ConfigError("the subset is empty, so there is nothing to draw. Get another.")
        if soft_labels and subset.soft_labels is None:
            raise ConfigError(
                f"soft_labels is {soft_labels}, and the subset has none. Get it with "
                "soft_labels=True."
            )
        self.subset, self.alpha = subset, soft_labels
        self._shuffle, self._seed = shuffle, seed
        self._rank, self.num_ranks = rank, num_ranks
        self._uneven: Uneven = uneven
        self._epoch = 0
        self._dealt_weights_N = torch.ones(0)
        self._dealt_soft_labels_NC: Tensor | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether examples of the present epoch count differently in the loss."""
        dealt_N = self._dealt_weights_N
        return bool(len(dealt_N)) and bool(dealt_N.min() != dealt_N.max())

    def weights(self, batch: int, batch_size: int) -> Tensor:
        """The weights of one of the present epoch's batches, float32, of mean 1 in the subset.

        Args:
            batch: its number, from 0, in the DataLoader's order.
            batch_size: the DataLoader's.
        """
        return self._dealt_weights_N[batch * batch_size : (batch + 1) * batch_size]

    def soft_labels(self, batch: int, batch_size: int) -> Tensor | None:
        """The soft labels of one of the present epoch's batches; None where none are wanted."""
        if self._dealt_soft_labels_NC is None:
            return None
        return self._dealt_soft_labels_NC[batch * batch_size : (batch + 1) * batch_size]

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch from the next `iter` on; call it before each epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return num_dealt(len(self.subset), self._rank, self.num_ranks, self._uneven)

    def __iter__(self) -> Iterator[int]:
        # Of this epoch, whatever subset the next one has.
        subset, order_N = self.subset, torch.arange(len(self.subset))
        if self._shuffle:
            generator = derive_generator(self._seed, "sampler-order", self._epoch)
            order_N = torch.randperm(len(subset), generator=generator)
        share_N = deal(order_N, self._rank, self.num_ranks, self._uneven)
        self._dealt_weights_N = torch.ones(1).expand(len(share_N))
        if subset.is_weighted:
            weights_N = normalized_weights(torch.from_numpy(subset.weights.copy()))
            self._dealt_weights_N = weights_N[share_N]
        if self.alpha and subset.soft_labels is not None:
            self._dealt_soft_labels_NC = torch.from_numpy(subset.soft_labels[share_N.numpy()])
        for share_B in in_blocks(share_N):
            yield from subset.indices[share_B.numpy()].tolist()


class ReselectingSampler(SubsetSampler):
    """A subset that is chosen again every R epochs, on the model's present weights.

    `set_epoch` asks when it is due, so call it before each epoch, on every rank.

        sampler = ReselectingSampler(client, model, "craig", fraction=0.1, every=20)
        loader = DataLoader(data, batch_size=256, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)
            for images, labels in loader: ...

    `shuffle`, `seed`, `rank`, `num_ranks` and `uneven` are those of `SubsetSampler`, and `alpha`
    its `soft_labels`; all other arguments, such as `fraction`, `every` and `prefetch`, those of
    `Reselection`.

    Attributes:
        reselection: what was selected when, and how long training waited for it.

    Raises:
        ConfigError, LiptError: as `Reselection` and `SubsetSampler`.
    """

    def __init__(
        self,
        client: Client,
        model: nn.Module,
        strategy: str = "facility_location",
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
        uneven: Uneven = "keep",
        alpha: float = 0.0,
        **selection: Unpack[SelectionOptions],
    ) -> None:
        asked: SelectionOptions = {"soft_labels": alpha > 0, **selection}
        self.reselection = Reselection(client, model, strategy, **asked)
        super().__init__(
            self.reselection.subset,
            shuffle=shuffle,
            seed=seed,
            rank=rank,
            num_ranks=num_ranks,
            uneven=uneven,
            soft_labels=alpha,
        )

    def set_epoch(self, epoch: int) -> None:
        """Take this epoch's order, and its subset where one is due."""
        super().set_epoch(epoch)
        self.subset = self.reselection.before_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint's state, as JSON values."""
        return {"epoch": self._epoch, "reselection": self.reselection.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, with `set_epoch` of the same epoch or the next.

        Raises:
            SubsetError: the subset is damaged.
        """
        self.reselection.load_state_dict(state["reselection"])
        self.subset = self.reselection.subset
        self._epoch = state["epoch"]
