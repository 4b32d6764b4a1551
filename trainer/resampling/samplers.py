"""Samplers that draw other examples for every epoch, for a DataLoader of one's own.

The process that owns the DataLoader draws; its workers receive row numbers. Ranks share one order,
each taking every `num_ranks`-th example of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from lipt.common.config.values import validate
from lipt.common.determinism import derive_generator
from lipt.common.subsets import require_budget, resolve_budget
from lipt.trainer.resampling.draws import (
    Cycles,
    InfoBatchOptions,
    LastLosses,
    StaleOptions,
    draw_by_losses,
    draw_pruned,
)
from lipt.trainer.reselection.reselection import Uneven, deal, in_blocks, require_rank
from lipt.trainer.subsets.data import MapStyle


class WithIds(Dataset[tuple[int, Any]]):
    """A map-style data set whose examples come as (row number, example)."""

    def __init__(self, dataset: MapStyle[Any]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> tuple[int, Any]:
        return row, self._dataset[row]


def with_ids(dataset: MapStyle[Any]) -> WithIds:
    """The same data set, with each example's row number: `for ids, (images, labels) in loader`."""
    return WithIds(dataset)


class EpochSampler(Sampler[int], ABC):
    """Draws an epoch's examples when `set_epoch` names it; arguments as of `SubsetSampler`."""

    def __init__(self, *, rank: int, num_ranks: int, uneven: Uneven) -> None:
        require_rank(rank, num_ranks)
        self.num_ranks = num_ranks
        self._rank = rank
        self._uneven: Uneven = uneven
        self._epoch = 0
        self._drawn: Tensor | None = None

    def set_epoch(self, epoch: int) -> None:
        """Draw this epoch's examples; call it before each epoch, on every rank."""
        if epoch != self._epoch or self._drawn is None:
            self._epoch = epoch
            self._drawn = self._draw(epoch)

    def __len__(self) -> int:
        return len(self._share())

    def __iter__(self) -> Iterator[int]:
        for share_B in in_blocks(self._share()):
            yield from share_B.tolist()

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint's state, for `torch.save`."""
        return {"epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, with `set_epoch` of the same epoch or the next."""
        self._epoch, self._drawn = state["epoch"], self._draw(state["epoch"])

    @abstractmethod
    def _draw(self, epoch: int) -> Tensor:
        """The row numbers of an epoch, int64, in order; the same on every rank."""

    def _share(self) -> Tensor:
        if self._drawn is None:
            self._drawn = self._draw(self._epoch)
        return deal(self._drawn, self._rank, self.num_ranks, self._uneven)


class LossSampler(EpochSampler):
    """Draws an epoch by the examples' last losses; arguments as of `EpochSampler`."""

    def __init__(self, num_examples: int, *, rank: int, num_ranks: int, uneven: Uneven) -> None:
        super().__init__(rank=rank, num_ranks=num_ranks, uneven=uneven)
        self._losses = LastLosses(num_examples)

    def set_epoch(self, epoch: int) -> None:
        """Draw this epoch's examples; call it before each epoch, on every rank."""
        if epoch != self._epoch:
            self._losses.settle()
        super().set_epoch(epoch)

    def update(self, ids_B: Tensor, losses_B: Tensor) -> None:
        """Note the losses (`reduction="none"`, without weights) of a batch's row numbers.

        Raises:
            ConfigError: there is not one loss per example.
        """
        self._losses.note(ids_B, losses_B)

    def gather(self) -> None:
        """Exchange the present epoch's losses, on every rank, before one rank's checkpoint."""
        self._losses.gather()

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint's state, for `torch.save`."""
        return super().state_dict() | {"losses": self._losses.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same data."""
        self._losses.load_state_dict(state["losses"])
        super().load_state_dict(state)


class RedrawingSampler(EpochSampler):
    """Random examples, drawn anew for every epoch, all of them before one comes again.

        sampler = RedrawingSampler(len(data), fraction=0.1)
        loader = DataLoader(data, batch_size=256, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)
            for images, labels in loader: ...

    Args:
        num_examples: of the data set.
        fraction: of the data set, per epoch; this or `budget`.
        budget: examples per epoch; this or `fraction`.
        seed: of the draws; the same on every rank.
        labels: one integer per example; where given, every epoch has its share of each class.
        rank: as in `SubsetSampler`, and so are `num_ranks` and `uneven`.

    Raises:
        BudgetError: not one of `fraction` and `budget`, or one out of range.

    Source: Okanovic et al. 2024 (arXiv:2305.18424), RS2 without replacement.
    """

    def __init__(
        self,
        num_examples: int,
        *,
        fraction: float | None = None,
        budget: int | None = None,
        seed: int = 0,
        labels: Tensor | None = None,
        rank: int = 0,
        num_ranks: int = 1,
        uneven: Uneven = "keep",
    ) -> None:
        super().__init__(rank=rank, num_ranks=num_ranks, uneven=uneven)
        size = resolve_budget(fraction=fraction, budget=budget, num_examples=num_examples)
        labels_N = None if labels is None else torch.as_tensor(labels)
        self._cycles = Cycles(num_examples, size, seed, labels_N)

    def _draw(self, epoch: int) -> Tensor:
        return self._cycles.draw(epoch)


class StaleLossSampler(LossSampler):
    """The examples of a random pool with the highest last losses.

        sampler = StaleLossSampler(len(data), fraction=0.1)
        loader = DataLoader(with_ids(data), batch_size=256, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)
            for ids, (images, labels) in loader:
                losses = cross_entropy(network(images), labels, reduction="none")
                sampler.update(ids, losses)

    The other arguments and errors are those of `RedrawingSampler`.

    Args:
        pool: size of an epoch's random pool, in budgets.
        hardest_out: share of the pool that is left out at the hard end; 0.05 where labels
            are noisy.

    Source: Jin et al. 2026 (arXiv:2606.08574), OrderDP.
    """

    def __init__(
        self,
        num_examples: int,
        *,
        fraction: float | None = None,
        budget: int | None = None,
        seed: int = 0,
        pool: float = 2.0,
        hardest_out: float = 0.0,
        rank: int = 0,
        num_ranks: int = 1,
        uneven: Uneven = "keep",
    ) -> None:
        super().__init__(num_examples, rank=rank, num_ranks=num_ranks, uneven=uneven)
        self._budget = resolve_budget(fraction=fraction, budget=budget, num_examples=num_examples)
        self._options = validate(StaleOptions, {"pool": pool, "hardest_out": hardest_out})
        self._seed = seed

    def _draw(self, epoch: int) -> Tensor:
        generator = derive_generator(self._seed, "redrawing-stale", epoch)
        return draw_by_losses(self._losses.known_N, self._budget, self._options, generator)


class InfoBatchSampler(LossSampler):
    """Every epoch without half of the easy examples; the other half counts twice.

        sampler = InfoBatchSampler(len(data), num_epochs=200)
        loader = DataLoader(with_ids(data), batch_size=256, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)
            for ids, (images, labels) in loader:
                losses = cross_entropy(network(images), labels, reduction="none")
                sampler.update(ids, losses)
                loss = (losses * sampler.weights(ids)).mean()

    The other arguments and errors are those of `RedrawingSampler`.

    Args:
        num_epochs: of the whole training.
        prune: share of the easy examples, of losses below the mean, that an epoch leaves out.
        annealing: share of all epochs, at the end, that are on all examples.

    Source: Qin et al. 2024 (arXiv:2303.04947).
    """

    def __init__(
        self,
        num_examples: int,
        *,
        num_epochs: int,
        seed: int = 0,
        prune: float = 0.5,
        annealing: float = 0.125,
        rank: int = 0,
        num_ranks: int = 1,
        uneven: Uneven = "keep",
    ) -> None:
        super().__init__(num_examples, rank=rank, num_ranks=num_ranks, uneven=uneven)
        require_budget(num_examples, num_examples)
        self._options = validate(InfoBatchOptions, {"prune": prune, "annealing": annealing})
        self._num_epochs, self._seed = num_epochs, seed
        self._weights_N = torch.ones(num_examples)

    def weights(self, ids_B: Tensor) -> Tensor:
        """The weights of a batch's examples in the present epoch; float32, on `ids_B`'s device."""
        self._share()  # drawn by now
        return self._weights_N[ids_B.cpu()].to(ids_B.device)

    def _draw(self, epoch: int) -> Tensor:
        generator = derive_generator(self._seed, "redrawing-infobatch", epoch)
        prune = self._options.share(epoch, self._num_epochs)
        ids_K, self._weights_N = draw_pruned(self._losses.known_N, prune, generator)
        return ids_K
