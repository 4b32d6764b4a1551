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


class Cycles:
    """Random examples in every epoch, without replacement over the epochs.

    A permutation of all examples is walked through a budget at a time. Where it ends within an
    epoch, the epoch takes its rest from the next permutation, less its own examples. (The authors'
    code goes back to the old permutation's beginning there, and repeats its first examples.)
    With labels, every epoch has its share of each class.

    Raises:
        BudgetError: the budget is outside 1..N.

    Source: Okanovic et al. 2024, "Repeated Random Sampling for Minimizing the Time-to-Accuracy
    of Learning" (arXiv:2305.18424), RS2 without replacement.
    """

    def __init__(
        self, num_examples: int, budget: int, seed: int, labels_N: Tensor | None = None
    ) -> None:
        require_budget(budget, num_examples)
        if labels_N is not None and len(labels_N) != num_examples:
            raise ValueError(f"{len(labels_N)} labels for {num_examples} examples")
        self._num_examples, self._budget, self._seed = num_examples, budget, seed
        self._labels_N = labels_N
        # The last cycle and its order.
        self._known = -1, torch.empty(0, dtype=torch.int64)

    def draw(self, epoch: int) -> Tensor:
        """The examples of an epoch, counted from 0: K distinct row numbers, int64, in order."""
        cycle, start = divmod(epoch * self._budget, self._num_examples)
        here = self._order(cycle)[start : start + self._budget]
        missing = self._budget - len(here)
        return torch.cat([here, self._order(cycle + 1)[:missing]]) if missing else here

    def _order(self, cycle: int) -> Tensor:
        known, order_N = self._known
        if known != cycle:
            # Lending moves only a cycle's own first K examples. So the end of one that is at
            # least two budgets long depends on no cycle before it.
            first = max(cycle - 1, 0) if 2 * self._budget <= self._num_examples else 0
            if not first <= known < cycle:
                known, order_N = first, self._permutation(first)
            for following in range(known + 1, cycle + 1):
                order_N = self._following(order_N, following)
            self._known = cycle, order_N
        return order_N

    def _following(self, order_N: Tensor, cycle: int) -> Tensor:
        """A cycle's order after `order_N`: what the shared epoch has already comes later."""
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
    """Spread each class evenly over an order, and keep the order within the class.

    The j-th of a class with n examples comes at (j + u) / n of the way, where u in [0, 1) is
    the class's own. So any stretch has about each class's share.
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


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class InfoBatchOptions(_Options):
    """Options of InfoBatch."""

    prune: float = Field(default=0.5, ge=0, lt=1)
    """Share of the easy examples that an epoch leaves out."""
    annealing: float = Field(default=0.125, ge=0, le=1)
    """Share of all epochs, at the end, that are on all examples."""

    def share(self, epoch: int, num_epochs: int | None) -> float:
        """Share of the easy examples that an epoch, counted from 0, leaves out."""
        early = num_epochs is None or epoch + 1 <= (1 - self.annealing) * num_epochs
        return self.prune if early else 0.0


def draw_pruned(
    losses_N: Tensor, prune: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """InfoBatch: an epoch without a share of the easy examples, whose rest is heavier.

    Easy is a last loss below the mean; an infinite one is unknown. Of n easy examples m stay, at
    least one, each with weight n/m, so that the expected gradient is that of all examples.

    Returns:
        K distinct row numbers, int64, in random order; and N weights, float32, 0 where left out.

    Source: Qin et al. 2024, "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data
    Pruning" (arXiv:2303.04947). As in the authors' code a fixed number of easy examples stays.
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


class StaleOptions(_Options):
    """Options of drawing by stale losses."""

    pool: float = Field(default=2.0, ge=1)
    """Size of an epoch's random pool, in budgets."""
    hardest_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of the pool that is left out at the hard end; 0.05 where labels are noisy."""


def draw_by_losses(
    losses_N: Tensor, budget: int, options: StaleOptions, generator: torch.Generator
) -> Tensor:
    """The examples of an epoch's random pool with the highest last losses, unseen ones first.

    Unseen examples have infinite losses; none of them is left out at the hard end.

    Returns:
        K distinct row numbers, int64, in random order.

    Source: Jin et al. 2026, "OrderDP: A Theoretically Guaranteed Lossless Dynamic Data Pruning
    Framework" (arXiv:2606.08574). Leaving the hardest out, against wrong labels, is ours.
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


class LastLosses:
    """Each example's loss when it was last trained on.

    Losses are noted batch by batch and taken over between epochs, so no batch waits for the
    device. Each of several ranks notes its own; those of all are taken over.

    Attributes:
        known_N: float32, on the CPU; infinite for an example that was never trained on.
    """

    def __init__(self, num_examples: int) -> None:
        self.known_N = torch.full((num_examples,), torch.inf)
        self._noted: list[tuple[Tensor, Tensor]] = []
        # Those of all ranks, not taken over yet.
        self._gathered: list[tuple[Tensor, Tensor]] = []

    def note(self, ids_B: Tensor, losses_B: Tensor) -> None:
        """Keep a batch's losses, on any device, until the next `settle`."""
        if ids_B.ndim != 1 or ids_B.shape != losses_B.shape:
            raise ConfigError(
                f"row numbers of shape {list(ids_B.shape)} and losses of shape "
                f"{list(losses_B.shape)} are not one loss per example. Compute the loss with "
                'reduction="none".'
            )
        # Copies: the caller may change its tensors, and the graph is let go.
        self._noted.append((ids_B.detach().clone(), losses_B.detach().clone()))

    def gather(self) -> None:
        """Exchange noted losses; with several ranks, call it on every one."""
        mine = [_together(self._noted)]
        self._noted = []
        everybodys: list[list[tuple[Tensor, Tensor]]] = [mine]
        if distributed.is_available() and distributed.is_initialized():
            everybodys = [[] for _ in range(distributed.get_world_size())]
            distributed.all_gather_object(everybodys, mine)
        self._gathered += [part for rank in everybodys for part in rank]

    def settle(self) -> None:
        """Take over all ranks' losses; with several ranks, call it on every one."""
        self.gather()
        ids, losses = _together(self._gathered)
        # In NumPy, the last of several values for one index stays.
        self.known_N.numpy()[ids.numpy()] = losses.numpy()
        self._gathered = []

    def state_dict(self) -> dict[str, Tensor]:
        """The known losses, and those that this rank has noted."""
        ids, losses = _together([*self._gathered, *self._noted])
        return {"known": self.known_N.clone(), "noted_ids": ids, "noted_losses": losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same data."""
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
