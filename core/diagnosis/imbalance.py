"""Imbalance: how unequal the classes are.

Shapes: C classes.
Source: the effective number of classes is the exponential of their entropy (Hill 1973,
"Diversity and Evenness"): 10 for ten equal ones, towards 1 for one that is all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Imbalance:
    """Of the classes that have examples.

    ratio: how many times as many the largest has as the smallest.
    smallest, largest: their labels; the lowest of equal ones.
    effective_classes: as many equal classes would be as uneven to draw from.
    """

    ratio: float
    smallest: int
    largest: int
    effective_classes: float


def imbalance(counts: Sequence[int]) -> Imbalance:
    """Compare the classes' sizes.

    Args:
        counts: examples of each class; one class at least has some.
    """
    present = [label for label, count in enumerate(counts) if count]
    if not present:
        raise ValueError("there are no examples in any class")
    smallest = min(present, key=lambda label: counts[label])
    largest = max(present, key=lambda label: counts[label])
    total = sum(counts)
    shares = [counts[label] / total for label in present]
    return Imbalance(
        ratio=counts[largest] / counts[smallest],
        smallest=smallest,
        largest=largest,
        effective_classes=math.exp(-sum(share * math.log(share) for share in shares)),
    )
