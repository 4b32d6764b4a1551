"""Epoch sampler: what all samplers that draw anew for every epoch have in common.

As with a subset's samplers, what is drawn is decided in the process that owns the DataLoader,
and workers are told row numbers only; ranks share one order, each taking every
`num_ranks`-th example of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import Sampler

from lipt.trainer.redrawing.last_losses import LastLosses
from lipt.trainer.subsets.dealing import Uneven, deal, in_blocks, require_rank


class EpochSampler(Sampler[int], ABC):
    """Draws an epoch's examples when `set_epoch` names it; the first epoch's unasked.

    Args:
        rank: which of the processes this is, from 0.
        num_ranks: how many processes train together.
        uneven: what happens where an epoch does not divide by `num_ranks`: see `SubsetSampler`.

    Raises:
        ConfigError: `rank` is not one of `num_ranks`.
    """

    def __init__(self, *, rank: int, num_ranks: int, uneven: Uneven) -> None:
        require_rank(rank, num_ranks)
        self.num_ranks = num_ranks
        self._rank = rank
        self._uneven: Uneven = uneven
        self._epoch = 0
        self._drawn: Tensor | None = None

    def set_epoch(self, epoch: int) -> None:
        """Take the examples of this epoch; call it before each epoch, on every rank."""
        if epoch != self._epoch or self._drawn is None:
            self._epoch = epoch
            self._drawn = self._draw(epoch)

    def __len__(self) -> int:
        return len(self._share())

    def __iter__(self) -> Iterator[int]:
        for share_B in in_blocks(self._share()):
            yield from share_B.tolist()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on in the same order; `torch.save` takes it as it is."""
        return {"epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken: with `set_epoch` of the same epoch or the next."""
        self._epoch, self._drawn = state["epoch"], self._draw(state["epoch"])

    @abstractmethod
    def _draw(self, epoch: int) -> Tensor:
        """The row numbers of an epoch, int64, in order; the same on every rank."""

    def _share(self) -> Tensor:
        if self._drawn is None:
            self._drawn = self._draw(self._epoch)
        return deal(self._drawn, self._rank, self.num_ranks, self._uneven)


class LossSampler(EpochSampler):
    """Draws an epoch by the losses that examples had when they were last trained on.

    Args:
        num_examples: of the data set.
        rank: which of the processes this is, from 0.
        num_ranks: how many processes train together.
        uneven: as that of `EpochSampler`.
    """

    def __init__(self, num_examples: int, *, rank: int, num_ranks: int, uneven: Uneven) -> None:
        super().__init__(rank=rank, num_ranks=num_ranks, uneven=uneven)
        self._losses = LastLosses(num_examples)

    def set_epoch(self, epoch: int) -> None:
        """Take the examples of this epoch; call it before each epoch, on every rank."""
        if epoch != self._epoch:
            self._losses.settle()
        super().set_epoch(epoch)

    def update(self, ids_B: Tensor, losses_B: Tensor) -> None:
        """Tell what a batch's losses were; later epochs are drawn by them.

        Args:
            ids_B: row numbers of the batch's examples, as `with_ids` gives them.
            losses_B: their losses (`reduction="none"`, without weights), on any device: they
                are read between epochs, so that no batch waits for a device.

        Raises:
            ConfigError: there is not one loss per example.
        """
        self._losses.note(ids_B, losses_B)

    def gather(self) -> None:
        """Tell all ranks of this one's losses, on every rank, before a checkpoint.

        `set_epoch` does so in any case. A checkpoint that one rank writes for all has only
        that rank's losses of the present epoch without it.
        """
        self._losses.gather()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on in the same order; `torch.save` takes it as it is."""
        return super().state_dict() | {"losses": self._losses.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken: with `set_epoch` of the same epoch or the next.

        Raises:
            ConfigError: it is the state of a sampler of other data.
        """
        self._losses.load_state_dict(state["losses"])
        super().load_state_dict(state)
