"""Redundancy: how few examples represent all, by facility location within each class.

It counts the greedily chosen examples of a class that carry 90% of the gain beyond the first. Large
classes are sampled; sampled examples are farther apart, so the share is an upper bound.

Shapes: N examples, n of a class or its sample, D features.
Source: facility location, Wei et al. 2015 (ICML).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.core.selection.pairs import scaled_cosine
from lipt.core.selection.solvers.representatives import fit_scale, lazy_greedy, store_levels
from lipt.core.selection.vectors import Vectors

CARRIED = 0.9
_MOST_EXAMPLES = 10_000
_FEWEST_OF_CLASS = 200


@dataclass(frozen=True)
class Redundancy:
    """Number of examples that carry 90% of the gain, in all and by label, and number compared."""

    examples: int
    per_class: tuple[int, ...]
    num_examples: int
    looked_at: int

    @property
    def share(self) -> float:
        """Share of all examples."""
        return self.examples / self.num_examples


def redundancy(
    features_ND: Tensor,
    labels_N: Tensor,
    num_classes: int,
    *,
    generator: torch.Generator,
    most_examples: int = _MOST_EXAMPLES,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Redundancy:
    """Count the representatives of each class by cosine of centred features; samples large ones."""
    most_of_class = max(_FEWEST_OF_CLASS, most_examples // max(1, num_classes))
    per_class = []
    looked_at = 0
    for label in range(num_classes):
        ids = torch.nonzero(labels_N == label).flatten()
        count = len(ids)
        if count > most_of_class:
            ids = ids[torch.randperm(count, generator=generator)[:most_of_class].sort().values]
        looked_at += len(ids)
        needed = carrying(features_ND[ids]) if count else 0
        per_class.append(math.ceil(count * needed / len(ids)) if count else 0)
        on_progress(label + 1, num_classes)
    return Redundancy(sum(per_class), tuple(per_class), len(labels_N), looked_at)


def carrying(features_nD: Tensor, share: float = CARRIED) -> int:
    """Number of examples that carry a share of the gain; at least one."""
    similarity = scaled_cosine(Vectors(features_nD))
    levels = store_levels(similarity, fit_scale(similarity, "24-bit"))
    best_n = torch.zeros_like(levels.matrix_NT[0])
    values_n = torch.empty(len(levels), dtype=torch.float64)
    for place, row in enumerate(lazy_greedy(levels, len(levels)).tolist()):
        torch.maximum(best_n, levels.matrix_NT[row], out=best_n)
        values_n[place] = best_n.sum(dtype=torch.int64)
    # The first pick's value is no gain: any choice has about as much.
    wanted = values_n[0] + share * (values_n[-1] - values_n[0])
    return 1 + int((values_n < wanted).sum())
