"""Overlap: how many examples two subsets share, and how many they would by chance.

Shapes: N examples, C classes, K and L of the two subsets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What two subsets have in common.

    shared: examples that are in both.
    jaccard: shared examples among those of either.
    by_chance: how many they would share in the mean, had each drawn as many examples of every
        class at random.
    """

    shared: int
    jaccard: float
    by_chance: float


def overlap(
    first_K: NDArray[np.int64], second_L: NDArray[np.int64], labels_N: NDArray[np.int64]
) -> Overlap:
    """What two subsets have in common.

    Args:
        first_K: rows, each once.
        second_L: those of the other.
        labels_N: of all examples.
    """
    all_C = np.bincount(labels_N)
    first_C, second_C = (
        np.bincount(labels_N[rows], minlength=len(all_C)) for rows in (first_K, second_L)
    )
    shared = len(np.intersect1d(first_K, second_L, assume_unique=True))
    return Overlap(
        shared=shared,
        jaccard=shared / max(len(first_K) + len(second_L) - shared, 1),
        by_chance=float((first_C * second_C / np.maximum(all_C, 1)).sum()),
    )
