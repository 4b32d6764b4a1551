"""Overlap of every two subsets that a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from lipt.common.subsets import Overlap, overlap
from lipt.trainer.subsets.subset import Subset


@dataclass(frozen=True, kw_only=True)
class NamedOverlap(Overlap):
    """What two subsets have in common, which are told apart by their strategies."""

    first: str
    second: str


def overlaps(subsets: Sequence[Subset], labels_N: NDArray[np.int64]) -> tuple[NamedOverlap, ...]:
    """The overlap of every two of some subsets, in their order."""
    return tuple(
        NamedOverlap(
            first=first.strategy,
            second=second.strategy,
            **vars(overlap(first.indices, second.indices, labels_N)),
        )
        for first, second in combinations(subsets, 2)
    )
