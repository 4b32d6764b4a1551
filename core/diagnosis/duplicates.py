"""Duplicates: of the examples of one picture the best label is kept, the others are surplus.

Shapes: N examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.core.diagnosis.copies import Copies


@dataclass(frozen=True)
class Duplicates:
    """Which example stands for which.

    kept_N: int64, the id that is kept for each; its own id where it is kept itself.
    exact_groups: how many pictures are there more than once to the pixel.
    near_groups: how many groups hold pictures that differ.
    conflicting: how many groups hold examples of different labels.
    threshold: from which two are alike.
    """

    kept_N: Tensor
    exact_groups: int
    near_groups: int
    conflicting: int
    threshold: float

    @property
    def surplus(self) -> int:
        """How many are not kept."""
        return int((self.kept_N != torch.arange(len(self.kept_N))).sum())

    def groups(self) -> list[list[int]]:
        """The ids of each group of two or more, the kept one first; the largest group first."""
        groups: dict[int, list[int]] = {}
        for example, kept in enumerate(self.kept_N.tolist()):
            if example != kept:
                groups.setdefault(kept, [kept]).append(example)
        return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def find_duplicates(labels_N: Tensor, quality_N: Tensor, copies: Copies) -> Duplicates:
    """Say which example is kept of each picture.

    Args:
        labels_N: int64.
        quality_N: of the labels: the best of a group is kept, of equal ones the lowest id.
        copies: which picture each example is of.
    """
    ids_N = torch.arange(len(labels_N))
    by_quality_N = quality_N.argsort(descending=True, stable=True)
    ranks_N = torch.empty_like(ids_N).scatter_(0, by_quality_N, ids_N)
    best_N = torch.full_like(ids_N, len(ids_N)).scatter_reduce_(
        0, copies.pictures_N, ranks_N, "amin"
    )
    kept_N = by_quality_N[best_N[copies.pictures_N]]
    different = copies.exact_N == ids_N
    return Duplicates(
        kept_N=kept_N,
        exact_groups=int((copies.exact_N.bincount() > 1).sum()),
        near_groups=int((copies.pictures_N[different].bincount() > 1).sum()),
        conflicting=len(set(kept_N[labels_N != labels_N[kept_N]].tolist())),
        threshold=copies.threshold,
    )
