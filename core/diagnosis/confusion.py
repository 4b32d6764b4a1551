"""Confusion: which classes' examples are surely taken for which other class.

Shapes: C classes.
Source: the confident joint of Northcutt et al. 2021 (arXiv:1911.00068), off its diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Confusion:
    """How many labelled `given` are surely taken for `suggested`; share is of all so labelled."""

    given: int
    suggested: int
    count: int
    share: float


def confusions(joint_CC: Tensor, counts_C: Tensor, *, most: int = 20) -> list[Confusion]:
    """The pairs of classes that are confused most often, most often first.

    Args:
        joint_CC: int64, how many are labelled c (rows) and surely taken for o (columns).
        counts_C: int64, examples of each label.
        most: how many pairs are listed; those that are never confused are not.
    """
    num_classes = len(counts_C)
    off_CC = joint_CC.clone().fill_diagonal_(0).flatten()
    order = off_CC.argsort(descending=True, stable=True)[:most]
    pairs = []
    for place in order[off_CC[order] > 0].tolist():
        given, suggested = divmod(place, num_classes)
        count = int(off_CC[place])
        pairs.append(Confusion(given, suggested, count, count / int(counts_C[given])))
    return pairs
