"""Samplers that draw other examples for every epoch, in place of a fixed subset."""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.config.values import validate
from lipt.common.determinism import derive_generator
from lipt.common.subsets import require_budget, resolve_budget
from lipt.trainer.redrawing.cycles import Cycles
from lipt.trainer.redrawing.epoch_sampler import EpochSampler, LossSampler
from lipt.trainer.redrawing.infobatch import InfoBatchOptions, draw_pruned
from lipt.trainer.redrawing.stale_losses import StaleOptions, draw_by_losses
from lipt.trainer.subsets.dealing import Uneven


class RedrawingSampler(EpochSampler):
    """Random examples, drawn anew for every epoch, all of them before one comes again.

        sampler = RedrawingSampler(len(data), fraction=0.1)
        loader = DataLoader(data, batch_size=256, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)
            for images, labels in loader: ...

    An epoch's examples and their order depend on the seed and the epoch alone.

    Args:
        num_examples: of the data set.
        fraction: of the data set, per epoch; this or `budget`.
        budget: how many examples per epoch; this or `fraction`.
        seed: of the draws; the same on every rank.
        labels: one integer per example; where given, every epoch has its share of each class.
        rank: which of the processes this is, from 0.
        num_ranks: how many processes train together.
        uneven: what happens where the budget does not divide by `num_ranks`: see
            `SubsetSampler`. Synchronized training needs "drop" or "repeat".

    Raises:
        BudgetError: not one of `fraction` and `budget`, or one that cannot be drawn.
        ConfigError: `rank` is not one of `num_ranks`.
        ValueError: there is not one label per example.

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
    """Of a random pool, the examples with the highest losses that are known.

        sampler = StaleLossSampler(len(data), fraction=0.1)
        loader = DataLoader(with_ids(data), batch_size=256, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)
            for ids, (images, labels) in loader:
                losses = cross_entropy(network(images), labels, reduction="none")
                sampler.update(ids, losses)

    Args:
        num_examples: of the data set.
        fraction: of the data set, per epoch; this or `budget`.
        budget: how many examples per epoch; this or `fraction`.
        seed: of the draws; the same on every rank.
        pool: size of an epoch's random pool, in budgets.
        hardest_out: share of the pool that is left out at the hard end; 0.05 where labels
            are noisy.
        rank: which of the processes this is, from 0.
        num_ranks: how many processes train together.
        uneven: what happens where an epoch does not divide by `num_ranks`: see `SubsetSampler`.

    Raises:
        BudgetError: not one of `fraction` and `budget`, or one that cannot be drawn.
        ConfigError: `rank` is not one of `num_ranks`, or an option is out of range.

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

    Args:
        num_examples: of the data set.
        num_epochs: how many epochs training has in all.
        seed: of the draws; the same on every rank.
        prune: share of the easy examples, of losses below the mean, that an epoch leaves out.
        annealing: share of all epochs, at the end, that are on all examples.
        rank: which of the processes this is, from 0.
        num_ranks: how many processes train together.
        uneven: what happens where an epoch does not divide by `num_ranks`: see `SubsetSampler`.

    Raises:
        BudgetError: there is no example.
        ConfigError: `rank` is not one of `num_ranks`, or an option is out of range.

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
        """What a batch's examples count in the present epoch; float32, where `ids_B` lies."""
        self._share()  # drawn by now
        return self._weights_N[ids_B.cpu()].to(ids_B.device)

    def _draw(self, epoch: int) -> Tensor:
        generator = derive_generator(self._seed, "redrawing-infobatch", epoch)
        prune = self._options.prune if self._options.prunes(epoch, self._num_epochs) else 0.0
        ids_K, self._weights_N = draw_pruned(self._losses.known_N, prune, generator)
        return ids_K
