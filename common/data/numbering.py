"""Numbering: how examples are counted where some of a set are left out.

Outside, an example has its row number in the whole set, its id. What is computed goes over the
others alone, by their places among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Numbering:
    """Ids and places, the one from the other.

    left_out: the ids that have no place, ascending.
    """

    left_out: tuple[int, ...] = ()

    def ids(self, places: Tensor) -> Tensor:
        """The ids of places, int64 of any shape."""
        return places + torch.searchsorted(self._before, places.contiguous(), right=True)

    def places(self, ids: Tensor) -> Tensor:
        """The places of ids, int64 of any shape, none of which is left out."""
        return ids - torch.searchsorted(self._left_out, ids.contiguous())

    def spread(self, values_N: Tensor, otherwise: Tensor | float) -> Tensor:
        """A value for each id from one for each place.

        Args:
            values_N: N or N x anything, by place.
            otherwise: of those that are left out: one for all, or one for each.
        """
        size = len(values_N) + len(self.left_out)
        spread = values_N.new_empty((size, *values_N.shape[1:]))
        spread[self.ids(torch.arange(len(values_N)))] = values_N
        spread[self._left_out] = torch.as_tensor(otherwise, dtype=values_N.dtype)
        return spread

    def kept(self, values_N: Tensor) -> Tensor:
        """The values of those that have a place, from one for each id; the same where all have."""
        if not self.left_out:
            return values_N
        return values_N[self.ids(torch.arange(len(values_N) - len(self.left_out)))]

    @cached_property
    def _left_out(self) -> Tensor:
        return torch.tensor(self.left_out, dtype=torch.int64)

    @cached_property
    def _before(self) -> Tensor:
        """How many that have a place come before each that has none."""
        return self._left_out - torch.arange(len(self.left_out))
