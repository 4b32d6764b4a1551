"""CREST's random sets: stratified over the classes, and every example once before any twice.

A plain draw of a hundredth of the examples misses rare classes, and a coreset of it then
says nothing about them. So examples are mixed evenly instead: shuffled, and then put in
such an order that every run of them has the classes in proportion. Sets are cut from that.

Shapes: N examples of the data, n of them, M in the pool, R in a set.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mixed_evenly(labels_n: Tensor) -> Tensor:
    """An order of examples in which every run has each class in proportion, but for one or so.

    Of those of one class the k-th goes to the share (k - 1/2) / count of the way. Classes
    that meet there keep their given order, as the examples of a class do.

    Returns:
        Positions; n int64.
    """
    counts_C = labels_n.bincount()
    by_label_n = labels_n.argsort(stable=True)
    starts_n = (counts_C.cumsum(dim=0) - counts_C)[labels_n[by_label_n]]
    ranks_n = torch.empty_like(labels_n)
    ranks_n[by_label_n] = torch.arange(len(labels_n), device=labels_n.device) - starts_n
    return ((ranks_n + 0.5).double() / counts_C[labels_n]).argsort(stable=True)


class RandomSets:
    """Stratified random sets of a pool from which examples are taken for good.

    The pool is shuffled, mixed evenly and cut into sets; when it runs out, what was put
    back is shuffled.
    """

    def __init__(
        self, pool_M: Tensor, labels_N: Tensor, set_size: int, generator: torch.Generator
    ) -> None:
        self._generator = generator
        self._labels_N = labels_N
        self._size = set_size
        self._ahead = self._shuffled(pool_M)
        self._back: list[Tensor] = []

    def draw(self) -> Tensor:
        """The next set; smaller than the others only where no more examples are left."""
        if len(self._ahead) < self._size and self._back:
            self._ahead = torch.cat([self._ahead, self._shuffled(torch.cat(self._back))])
            self._back = []
        drawn_R, self._ahead = self._ahead[: self._size], self._ahead[self._size :]
        return drawn_R

    def put_back(self, set_R: Tensor, *, without: Tensor) -> None:
        """Let a set's examples come again, except those at some positions."""
        stays_R = torch.ones(len(set_R), dtype=torch.bool, device=set_R.device)
        stays_R[without] = False
        self._back.append(set_R[stays_R])

    def _shuffled(self, ids: Tensor) -> Tensor:
        order = torch.randperm(len(ids), generator=self._generator).to(ids.device)
        return ids[order][mixed_evenly(self._labels_N[ids[order]])]
