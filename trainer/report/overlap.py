"""Overlap: how many examples two subsets share, and how many they would by chance.

Shapes: N examples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from lipt.trainer.subsets.subset import Subset


@dataclass(frozen=True)
class Overlap:
    """What two subsets have in common.

    shared: examples that are in both.
    jaccard: shared examples among those of either.
    by_chance: how many they would share in the mean, had each drawn as many examples of every
        class at random.
    """

    first: str
    second: str
    shared: int
    jaccard: float
    by_chance: float


def overlaps(subsets: Sequence[Subset], labels_N: NDArray[np.int64]) -> tuple[Overlap, ...]:
    """The overlap of every two of some subsets, in their order."""
    return tuple(_overlap(first, second, labels_N) for first, second in combinations(subsets, 2))


def _overlap(first: Subset, second: Subset, labels_N: NDArray[np.int64]) -> Overlap:
    all_C = np.bincount(labels_N)
    first_C, second_C = (
        np.bincount(labels_N[subset.indices], minlength=len(all_C)) for subset in (first, second)
    )
    shared = len(np.intersect1d(first.indices, second.indices, assume_unique=True))
    return Overlap(
        first=first.strategy,
        second=second.strategy,
        shared=shared,
        jaccard=shared / max(len(first) + len(second) - shared, 1),
        by_chance=float((first_C * second_C / np.maximum(all_C, 1)).sum()),
    )
