"""Resampling every epoch: at random (RS2), or by each example's last loss (InfoBatch).

Training takes as many steps as on a fixed subset of the same budget, and sees more of the data.
Samplers and `fit` share these draws.

Shapes: N examples, K budget or examples of an epoch, E easy, B of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, distributed

from lipt.common.config.values import validate
from lipt.common.data import Dataset
from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError, UnknownNameError
from lipt.common.subsets import require_budget, subset_digest
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.subsets.weighted import ABSOLUTE_WEIGHTS


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
        if labels_N is not None and len(labels_N) != num_examples:
            raise ValueError(f"{len(labels_N)} labels for {num_examples} examples")
        self._num_examples, self._budget, self._seed = num_examples, budget, seed
        self._labels_N = labels_N
        # The last cycle and its order.
        self._known = -1, torch.empty(0, dtype=torch.int64)

    def draw(self, epoch: int, num_epochs: int | None = None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return an epoch's K distinct row numbers, int64, and K weights, float32."""
        cycle, start = divmod(epoch * self._budget, self._num_examples)
        here = self._order(cycle)[start : start + self._budget]
        missing = self._budget - len(here)
        ids_K = torch.cat([here, self._order(cycle + 1)[:missing]]) if missing else here
        return ids_K, torch.ones(len(ids_K))

    def _order(self, cycle: int) -> Tensor:
        known, order_N = self._known
        if known != cycle:
            # A shared epoch reorders only a cycle's first K examples. So the end of a cycle of
            # at least two budgets does not depend on earlier cycles.
            first = max(cycle - 1, 0) if 2 * self._budget <= self._num_examples else 0
            if not first <= known < cycle:
                known, order_N = first, self._permutation(first)
            for following in range(known + 1, cycle + 1):
                order_N = self._following(order_N, following)
            self._known = cycle, order_N
        return order_N

    def _following(self, order_N: Tensor, cycle: int) -> Tensor:
        next_N = self._permutation(cycle)
        num_left = cycle * self._num_examples % self._budget
        if not num_left:
            return next_N
        lent = next_N[~torch.isin(next_N, order_N[-num_left:])][: self._budget - num_left]
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


class Options(BaseModel):
    """Options of a resampling method; random resampling has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class InfoBatchOptions(Options):
    """The share of easy examples to leave out, and of the last epochs that are on all examples."""

    prune: float = Field(default=0.5, ge=0, lt=1)
    annealing: float = Field(default=0.125, ge=0, le=1)


def draw_pruned(
    losses_N: Tensor, prune: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """InfoBatch: leave out a share of the easy examples, and increase the weights of the others.

    Easy examples have a last loss below the mean; infinite losses are unknown. Of n easy examples m
    stay, at least one, each with weight n/m, so the expected gradient is that of all examples.
    Returns K distinct row numbers, int64, in random order; and N weights, float32, 0 where left
    out.
    Source: Qin et al. 2024, "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data
    Pruning" (arXiv:2303.04947). As in the authors' code, a fixed number of easy examples stays.
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


class InfoBatchDraws:
    """Draws of `draw_pruned` by each example's loss in its last training step.

    `known_N` is infinite for unseen examples, and `weights_N` belongs to the last draw. `note`
    stores a rank's losses without waiting; `settle` adds those of all ranks to `known_N`. `budget`
    examples set the number of steps of `fit`.
    """

    def __init__(
        self, num_examples: int, budget: int, seed: int, options: InfoBatchOptions
    ) -> None:
        require_budget(budget, num_examples)
        self.budget, self._seed, self._options = budget, seed, options
        self.known_N = torch.full((num_examples,), torch.inf)
        self.weights_N = torch.ones(num_examples)
        self._noted: list[tuple[Tensor, Tensor]] = []
        # Losses of all ranks that are not in `known_N` yet.
        self._gathered: list[tuple[Tensor, Tensor]] = []

    def draw(self, epoch: int, num_epochs: int | None = None) -> tuple[Tensor, Tensor]:
        """Draw as `Cycles.draw`, by the losses so far."""
        generator = derive_generator(self._seed, "redrawing-infobatch", epoch)
        annealing = self._options.annealing
        early = num_epochs is None or epoch + 1 <= (1 - annealing) * num_epochs
        prune = self._options.prune if early else 0.0
        ids_K, self.weights_N = draw_pruned(self.known_N, prune, generator)
        return ids_K, self.weights_N[ids_K]

    def note(self, ids_B: Tensor, losses_B: Tensor) -> None:
        """Store a batch's losses, on any device."""
        if ids_B.ndim != 1 or ids_B.shape != losses_B.shape:
            raise ConfigError(
                f"row numbers of shape {list(ids_B.shape)} and losses of shape "
                f"{list(losses_B.shape)} are not one loss per example. Compute the loss with "
                'reduction="none".'
            )
        # Copies: the caller may change its tensors. `detach` frees the graph.
        self._noted.append((ids_B.detach().clone(), losses_B.detach().clone()))

    def gather(self) -> None:
        """Exchange noted losses between ranks; call it on every rank."""
        parts: list[Any] = [_together(self._noted)]
        self._noted = []
        if distributed.is_available() and distributed.is_initialized():
            mine, parts = parts[0], [None] * distributed.get_world_size()
            distributed.all_gather_object(parts, mine)
        self._gathered += parts

    def settle(self) -> None:
        """Add all ranks' losses to `known_N`; call it on every rank."""
        self.gather()
        ids, losses = _together(self._gathered)
        # NumPy keeps the last of several values for one index.
        self.known_N.numpy()[ids.numpy()] = losses.numpy()
        self._gathered = []

    def state_dict(self) -> dict[str, Tensor]:
        """Return the known losses, and those that this rank has noted."""
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
    ids = [torch.empty(0, dtype=torch.int64), *(part[0].cpu().long() for part in parts)]
    losses = [torch.empty(0), *(part[1].cpu().float() for part in parts)]
    return torch.cat(ids), torch.cat(losses)


_OPTIONS: Mapping[str, type[Options]] = {"random": Options, "infobatch": InfoBatchOptions}


def redraw_options(way: str, options: Mapping[str, object]) -> Options:
    """Check a way's options; see `Redrawn`."""
    if way not in _OPTIONS:
        raise UnknownNameError(
            f"there is no way {way!r} to redraw. Choose from: {', '.join(_OPTIONS)}."
        )
    return validate(_OPTIONS[way], options)


class Redrawn:
    """Source for `fit`: other examples in every epoch, for the steps of a subset of `budget`.

    Args:
        way: "random" (with each class's share), or "infobatch" (without a share of the easy
            examples, reweighting the others; losses set the size of each epoch).
        train: the data set.
        budget: number of examples.
        seed: seed of the draws.
        options: those of "infobatch", by name: `prune` and `annealing`.

    Raises:
        UnknownNameError, ConfigError, BudgetError: no such way or option, or a size out of range.
    """

    def __init__(
        self,
        way: str,
        train: Dataset,
        budget: int,
        seed: int,
        options: Mapping[str, object] | None = None,
    ) -> None:
        settings = redraw_options(way, options or {})
        asked = {"redraw": way, "budget": budget, "seed": seed}
        self.identity: Mapping[str, Any] = asked | settings.model_dump()
        self.num_epochs: int | None = None
        self.losses: InfoBatchDraws | None = None
        if isinstance(settings, InfoBatchOptions):
            self.losses = InfoBatchDraws(len(train), budget, seed, settings)
        self._draws = self.losses or Cycles(len(train), budget, seed, train.labels_N)
        self._fingerprint, self._strategy = train.fingerprint, f"redrawn_{way}"
        # InfoBatch's mean weight is above 1, which makes up for fewer steps.
        self._manifest = {ABSOLUTE_WEIGHTS: True} if self.losses else {}
        self.subset = self.before_epoch(0)

    def before_epoch(self, epoch: int) -> Subset:
        """Return the subset of an epoch, counted from 0."""
        ids_K, weights_K = self._draws.draw(epoch, self.num_epochs)
        ids_K, order_K = ids_K.sort()
        indices, weights = ids_K.numpy(), weights_K[order_K].numpy()
        digest = subset_digest(indices, weights)
        self.subset = Subset(
            indices, weights, self._fingerprint, digest, self._strategy, self._manifest
        )
        return self.subset
