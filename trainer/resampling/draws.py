"""Draws of an epoch's examples: at random (RS2), InfoBatch, and by stale losses (OrderDP).

Shapes: N examples, K budget or examples of an epoch, E easy, S of the pool, B of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, distributed

from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError
from lipt.common.subsets import require_budget

# Cycles: random examples in every epoch, without replacement over the epochs.
#
# A permutation of all examples is walked through, a budget at a time, and drawn anew when it
# is used up. So all examples are seen before one is seen again: training on everything, for
# fewer epochs.
#
# Where the permutation ends within an epoch, the epoch takes its rest from the next one, less
# what it has already; that comes later in the next one. (The authors' code goes back to the
# beginning of the old permutation there, and so sees its first examples twice.)
#
# Source: Okanovic et al. 2024, "Repeated Random Sampling for Minimizing the Time-to-Accuracy
# of Learning" (arXiv:2305.18424), RS2 without replacement.


class Cycles:
    """A budget of examples for every epoch: a function of seed and epoch alone.

    Args:
        num_examples: N.
        budget: K, in 1..N.
        seed: of all permutations.
        labels_N: int64; where given, every epoch has its share of each class.

    Raises:
        BudgetError: the budget is outside 1..N.
        ValueError: there is not one label per example.
    """

    def __init__(
        self, num_examples: int, budget: int, seed: int, labels_N: Tensor | None = None
    ) -> None:
        require_budget(budget, num_examples)
        if labels_N is not None and len(labels_N) != num_examples:
            raise ValueError(f"{len(labels_N)} labels for {num_examples} examples")
        self._num_examples, self._budget, self._seed = num_examples, budget, seed
        self._labels_N = labels_N
        # The last cycle that was asked for, and its order.
        self._known = -1, torch.empty(0, dtype=torch.int64)

    def draw(self, epoch: int) -> Tensor:
        """The examples of an epoch, counted from 0: K distinct row numbers, int64, as drawn."""
        cycle, start = divmod(epoch * self._budget, self._num_examples)
        here = self._order(cycle)[start : start + self._budget]
        missing = self._budget - len(here)
        return torch.cat([here, self._order(cycle + 1)[:missing]]) if missing else here

    def _order(self, cycle: int) -> Tensor:
        """A cycle's permutation of all examples, as it is walked through."""
        known, order_N = self._known
        if known != cycle:
            # What was lent moves only a cycle's own first K examples. So its end depends on no
            # cycle before it, where it is at least two budgets long.
            first = max(cycle - 1, 0) if 2 * self._budget <= self._num_examples else 0
            if not first <= known < cycle:
                known, order_N = first, self._permutation(first)
            for following in range(known + 1, cycle + 1):
                order_N = self._following(order_N, following)
            self._known = cycle, order_N
        return order_N

    def _following(self, order_N: Tensor, cycle: int) -> Tensor:
        """A cycle's order, given that of the one before: what an epoch has already comes later."""
        next_N = self._permutation(cycle)
        num_left = cycle * self._num_examples % self._budget
        if not num_left:
            return next_N
        lent = next_N[~self._among(next_N, order_N[-num_left:])][: self._budget - num_left]
        return torch.cat([lent, next_N[~self._among(next_N, lent)]])

    def _among(self, examples: Tensor, some: Tensor) -> Tensor:
        mask_N = torch.zeros(self._num_examples, dtype=torch.bool)
        mask_N[some] = True
        return mask_N[examples]

    def _permutation(self, cycle: int) -> Tensor:
        generator = derive_generator(self._seed, "redrawing-cycle", cycle)
        order_N = torch.randperm(self._num_examples, generator=generator)
        return order_N if self._labels_N is None else _spread(order_N, self._labels_N, generator)


def _spread(order_N: Tensor, labels_N: Tensor, generator: torch.Generator) -> Tensor:
    """Deal out each class evenly over an order, and keep the order within the class.

    The j-th of a class with n examples comes at (j + u) / n of the way, where u in [0, 1) is
    the class's own. So any stretch has about each class's share of it: with classes of one size
    the shares differ by one at most.
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


# InfoBatch: every epoch without a share of the easy examples, and the others of them heavier.
#
# Easy is what had a loss below the mean when it was last trained on. Of n easy examples m stay,
# drawn anew every epoch, each with weight n/m: 1/(1 - r) for a pruned share r. So every example
# counts 1 in the mean over draws, and all that are drawn count N together: the gradient of an
# epoch is not biased. The last epochs are on everything.
#
# Source: Qin et al. 2024, "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data
# Pruning" (arXiv:2303.04947). As in the authors' code a fixed number of easy examples stays.


class InfoBatchOptions(BaseModel):
    """How examples are drawn by InfoBatch."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prune: float = Field(default=0.5, ge=0, lt=1)
    """Share of the easy examples that an epoch leaves out."""
    annealing: float = Field(default=0.125, ge=0, le=1)
    """Share of all epochs, at the end, that are on all examples."""

    def prunes(self, epoch: int, num_epochs: int | None) -> bool:
        """Whether an epoch, counted from 0, leaves examples out.

        Args:
            epoch: which one.
            num_epochs: how many there are; where None there is no end to be on everything for.
        """
        return num_epochs is None or epoch + 1 <= (1 - self.annealing) * num_epochs


def draw_pruned(
    losses_N: Tensor, prune: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """An epoch's examples and everybody's weights.

    Args:
        losses_N: each example's last loss; infinite where it was never trained on, which is
            not easy.
        prune: share of the easy ones that is left out, in [0, 1). One stays in any case.
        generator: the epoch's own, on the CPU.

    Returns:
        K distinct row numbers, int64, in random order; and N weights, float32: n/m for those
        easy ones that stay, 0 for those that do not, 1 for all others.
    """
    known_N = losses_N.isfinite()
    mean = losses_N[known_N].double().mean()
    easy_E = (known_N & (losses_N < mean)).nonzero().flatten()
    weights_N = torch.ones(len(losses_N))
    if len(easy_E):
        num_kept = max(1, round((1 - prune) * len(easy_E)))
        kept = easy_E[torch.randperm(len(easy_E), generator=generator)[:num_kept]]
        weights_N[easy_E] = 0.0
        weights_N[kept] = len(easy_E) / num_kept
    chosen_K = weights_N.nonzero().flatten()
    return chosen_K[torch.randperm(len(chosen_K), generator=generator)], weights_N


# Stale losses: of a random pool, the examples with the highest losses that are known.
#
# Every epoch has its own pool, twice the budget unless told otherwise. A loss is known from the
# last time that the example was trained on, and costs no forward pass; an example that was
# never trained on comes before all others.
#
# High losses are also those of wrong labels: `hardest_out` leaves the hardest of each pool out.
#
# Source: Jin et al. 2026, "OrderDP: A Theoretically Guaranteed Lossless Dynamic Data Pruning
# Framework" (arXiv:2606.08574). Leaving the hardest out is ours.


class StaleOptions(BaseModel):
    """How examples are drawn by stale losses."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    pool: float = Field(default=2.0, ge=1)
    """Size of an epoch's random pool, in budgets."""
    hardest_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of the pool that is left out at the hard end; 0.05 where labels are noisy."""


def draw_by_losses(
    losses_N: Tensor, budget: int, options: StaleOptions, generator: torch.Generator
) -> Tensor:
    """An epoch's examples.

    Args:
        losses_N: each example's last loss; infinite where it was never trained on.
        budget: K, in 1..N.
        options: the pool, and what is left out of it. Left out are only examples that were
            trained on before, and never so many that the budget is not reached.
        generator: the epoch's own, on the CPU.

    Returns:
        K distinct row numbers, int64, in random order. Of equal losses any may be taken.
    """
    num_examples = len(losses_N)
    pool_size = min(num_examples, max(budget, round(options.pool * budget)))
    pool_S = torch.randperm(num_examples, generator=generator)[:pool_size]
    losses_S = losses_N[pool_S].nan_to_num(nan=torch.inf, posinf=torch.inf)
    hardest_first_S = losses_S.argsort(descending=True, stable=True)
    num_unseen = int(losses_S.isinf().sum())
    num_out = min(int(options.hardest_out * pool_size), pool_size - max(budget, num_unseen))
    left = torch.cat([hardest_first_S[:num_unseen], hardest_first_S[num_unseen + num_out :]])
    chosen_K = pool_S[left[:budget]]
    return chosen_K[torch.randperm(budget, generator=generator)]


# Last losses: what each example's loss was when it was last trained on.
#
# Losses are noted batch by batch, wherever they lie, and taken over between epochs: an epoch is
# drawn by what was known before it, and no batch waits for the device. In training on several
# ranks each has the losses of its own share; what is taken over is everybody's.


class LastLosses:
    """The losses that examples are drawn by.

    Args:
        num_examples: N.

    Attributes:
        known_N: float32, on the CPU; infinite for an example that was never trained on.
    """

    def __init__(self, num_examples: int) -> None:
        self.known_N = torch.full((num_examples,), torch.inf)
        self._noted: list[tuple[Tensor, Tensor]] = []
        # Those of all ranks, not taken over yet.
        self._gathered: list[tuple[Tensor, Tensor]] = []

    def note(self, ids_B: Tensor, losses_B: Tensor) -> None:
        """Keep a batch's losses until the next `settle`.

        Args:
            ids_B: row numbers, integers, on any device.
            losses_B: one for each, on any device; with or without a gradient.

        Raises:
            ConfigError: there is not one loss per example.
        """
        if ids_B.ndim != 1 or ids_B.shape != losses_B.shape:
            raise ConfigError(
                f"row numbers of shape {list(ids_B.shape)} and losses of shape "
                f"{list(losses_B.shape)} are not one loss per example. Compute the loss with "
                'reduction="none".'
            )
        # Not the caller's own memory, which may change, nor what the loss was computed from.
        self._noted.append((ids_B.detach().clone(), losses_B.detach().clone()))

    def gather(self) -> None:
        """Tell all ranks what each has noted; where there are several, call it on every one."""
        mine = [_together(self._noted)]
        self._noted = []
        everybodys: list[list[tuple[Tensor, Tensor]]] = [mine]
        if distributed.is_available() and distributed.is_initialized():
            everybodys = [[] for _ in range(distributed.get_world_size())]
            distributed.all_gather_object(everybodys, mine)
        self._gathered += [part for rank in everybodys for part in rank]

    def settle(self) -> None:
        """Take over what all ranks have noted; where there are several, call it on every one.

        Raises:
            IndexError: a row number is outside 0..N-1.
        """
        self.gather()
        ids, losses = _together(self._gathered)
        # NumPy's, where the last of several values for one index is the one that stays.
        self.known_N.numpy()[ids.numpy()] = losses.numpy()
        self._gathered = []

    def state_dict(self) -> dict[str, Tensor]:
        """All of it, as tensors: what is known, and what this rank knows besides."""
        ids, losses = _together([*self._gathered, *self._noted])
        return {"known": self.known_N.clone(), "noted_ids": ids, "noted_losses": losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            ConfigError: it is the state for other data.
        """
        if len(state["known"]) != len(self.known_N):
            raise ConfigError(
                f"the state has the losses of {len(state['known'])} examples, but there are "
                f"{len(self.known_N)}. Give the data that was trained on."
            )
        self.known_N = state["known"].clone()
        self._gathered = [(state["noted_ids"].clone(), state["noted_losses"].clone())]
        self._noted = []


def _together(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Row numbers, int64, and losses, float32, on the CPU, in order."""
    ids = [torch.empty(0, dtype=torch.int64), *(part[0].cpu().long() for part in parts)]
    losses = [torch.empty(0), *(part[1].cpu().float() for part in parts)]
    return torch.cat(ids), torch.cat(losses)
