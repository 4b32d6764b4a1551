"""Outliers: examples that are far from everything.

The mean distance to the ten nearest others, in scaled features projected on 128 random
directions (which change a distance by some 6%) and among at most 10,000 examples drawn at
random, relative to the median example's. Far out is what lies three times the quartiles'
distance above the upper one.

Shapes: N examples, R references, D features, M directions, B examples of a block.
Source: Ramaswamy et al. 2000, "Efficient Algorithms for Mining Outliers from Large Data
Sets"; the fence is Tukey's (1977).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.proxies.ridge import scaling_of

_NEIGHBOURS = 10
_NUM_DIRECTIONS = 128
_MOST_REFERENCES = 10_000
_FENCE = 3.0


@dataclass(frozen=True)
class Outliers:
    """How far each is from others.

    scores_N: float32, 1 for the median example.
    fence: what is above it is far out.
    """

    scores_N: Tensor
    fence: float

    def ranked(self) -> Tensor:
        """The ids of what is far out, the farthest first; ties keep the data set's order."""
        ids = torch.nonzero(self.scores_N > self.fence).flatten()
        return ids[self.scores_N[ids].argsort(descending=True, stable=True)]


def find_outliers(features_ND: Tensor, *, generator: torch.Generator) -> Outliers:
    """Find what is far from everything."""
    num_examples = len(features_ND)
    sketches_NM = _sketches(features_ND, generator)
    references_R = (
        torch.randperm(num_examples, generator=generator)[:_MOST_REFERENCES].sort().values
    )
    kept_RM = sketches_NM[references_R]
    count = min(_NEIGHBOURS, len(references_R) - 1)
    scores_N = torch.zeros(num_examples)
    if count < 1:
        return Outliers(scores_N, torch.inf)
    for rows in row_blocks(num_examples, 8 * len(references_R)):
        distances_BR = torch.cdist(sketches_NM[rows], kept_RM)
        own_B = torch.arange(rows.start, rows.stop)
        distances_BR.masked_fill_(own_B[:, None] == references_R, torch.inf)
        scores_N[rows] = distances_BR.topk(count, largest=False).values.mean(dim=1)
    median = float(scores_N.median())
    if median > 0:
        scores_N /= median
    # Duplicates alone have distance 0; where they are most, there is no scale to be far out on.
    ordered_N = scores_N.sort().values
    lower, upper = (float(ordered_N[int(share * (num_examples - 1))]) for share in (0.25, 0.75))
    return Outliers(scores_N, upper + _FENCE * (upper - lower) if median > 0 else torch.inf)


def _sketches(features_ND: Tensor, generator: torch.Generator) -> Tensor:
    num_examples, num_features = features_ND.shape
    scaling = scaling_of(features_ND, torch.ones(num_examples, dtype=torch.float64))
    if num_features > _NUM_DIRECTIONS:
        directions = torch.randn(num_features, _NUM_DIRECTIONS, generator=generator)
        directions /= math.sqrt(_NUM_DIRECTIONS)
    else:
        directions = torch.eye(num_features)
    sketches_NM = torch.empty(num_examples, directions.shape[1])
    for rows in row_blocks(num_examples, 12 * num_features):
        sketches_NM[rows] = scaling.apply(features_ND[rows]).float() @ directions
    return sketches_NM
