"""Cycles: random examples in every epoch, without replacement over the epochs.

A permutation of all examples is walked through, a budget at a time, and drawn anew when it
is used up. So all examples are seen before one is seen again: training on everything, for
fewer epochs.

Where the permutation ends within an epoch, the epoch takes its rest from the next one, less
what it has already; that comes later in the next one. (The authors' code goes back to the
beginning of the old permutation there, and so sees its first examples twice.)

Shapes: N examples, K budget.
Source: Okanovic et al. 2024, "Repeated Random Sampling for Minimizing the Time-to-Accuracy
of Learning" (arXiv:2305.18424), RS2 without replacement.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.subsets import require_budget


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
        """For each of the examples, whether it is one of some."""
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
