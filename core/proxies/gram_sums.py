"""Gram sums: what a ridge head needs of examples, as values that add up.

The examples count with weights, their features are centred and scaled. Every number is a
sum over examples in float64, so that the sums of parts of the data, wherever they were made,
are those of all of it.

Shapes: N examples, B of a block, D features, C classes or what else a head gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.signals.blocks import row_blocks

# Columns of a product that are made at once: the upper triangle costs 5/8 of the whole then.
_PANEL = 256


@dataclass(frozen=True)
class Scaling:
    """Features' weighted mean and the inverse of their deviation; D, float64.

    A feature that is the same for all examples counts nothing.
    """

    mean_D: Tensor
    inverse_D: Tensor

    def apply(self, features_BD: Tensor) -> Tensor:
        """The features centred and scaled; B x D float64."""
        scaled_BD = features_BD.to(torch.float64, copy=True)
        return scaled_BD.sub_(self.mean_D).mul_(self.inverse_D)


@dataclass(frozen=True)
class WeightedRows:
    """The examples as a head's equations have them.

    weights_N: how much each one counts; float64, above 0.
    num_classes: C.
    values_NC: what the head is to give, float64; one-hot labels where None.
    """

    features_ND: Tensor
    labels_N: Tensor
    weights_N: Tensor
    scaling: Scaling
    num_classes: int
    values_NC: Tensor | None = None

    def scaled(self, ids_B: Tensor) -> Tensor:
        """Rows of Z; B x D float64."""
        roots_B = self.weights_N[ids_B].sqrt()
        return self.scaling.apply(self.features_ND[ids_B]).mul_(roots_B[:, None])

    def targets(self, ids_B: Tensor) -> Tensor:
        """What the head is to give; B x C float64."""
        if self.values_NC is not None:
            return self.values_NC[ids_B]
        return functional.one_hot(self.labels_N[ids_B], self.num_classes).double()

    def weighted_targets(self, ids_B: Tensor) -> Tensor:
        """Targets minus their mean, times the root of the weight; B x C float64."""
        centred_BC = self.targets(ids_B) - self.mean_target_C()
        return centred_BC.mul_(self.weights_N[ids_B].sqrt()[:, None])

    def mean_target_C(self) -> Tensor:
        """The weighted mean target."""
        if self.values_NC is not None:
            return self.weights_N @ self.values_NC / self.weights_N.sum()
        totals_C = self.weights_N.new_zeros(self.num_classes)
        totals_C.index_add_(0, self.labels_N, self.weights_N)
        return totals_C / self.weights_N.sum()

    def blocks(self) -> Iterator[Tensor]:
        """The ids, in order, in blocks that take 64 MiB in float64."""
        every_N = torch.arange(len(self.labels_N), device=self.labels_N.device)
        for rows in row_blocks(len(every_N), 8 * self.features_ND.shape[1]):
            yield every_N[rows]


@dataclass(frozen=True)
class GramSums:
    """Sums over examples.

    upper_DD: Z'Z in its upper triangle; what is below is not to be read. Float64.
    targets_DC: Z' (w^1/2 (y - mean y)); float64.
    """

    upper_DD: Tensor
    targets_DC: Tensor

    @classmethod
    def of(cls, rows: WeightedRows, ids_B: Tensor) -> GramSums:
        """Those of some of the examples."""
        scaled_BD = rows.scaled(ids_B)
        num_features = scaled_BD.shape[1]
        upper_DD = scaled_BD.new_zeros(num_features, num_features)
        for start in range(0, num_features, _PANEL):
            panel = slice(start, start + _PANEL)
            upper_DD[panel, start:] = scaled_BD[:, panel].T @ scaled_BD[:, start:]
        return cls(upper_DD, scaled_BD.T @ rows.weighted_targets(ids_B))

    def __add__(self, other: GramSums) -> GramSums:
        return GramSums(self.upper_DD + other.upper_DD, self.targets_DC + other.targets_DC)


def class_weights(labels_N: Tensor, trust_N: Tensor | None = None) -> Tensor:
    """How much each example counts, where every class has the same say; float64, with mean 1.

    Args:
        labels_N: int64.
        trust_N: its share of its class's say, float64 above 0; the same for all by default.
    """
    trust_N = torch.ones_like(labels_N, dtype=torch.float64) if trust_N is None else trust_N
    # Of no example at all they are whole numbers.
    totals_C = labels_N.bincount(weights=trust_N).double()
    present = int((totals_C > 0).sum())
    return (len(labels_N) / (present * totals_C.clamp(min=1e-30)))[labels_N] * trust_N


def scaling_of(features_ND: Tensor, weights_N: Tensor) -> Scaling:
    """Two passes over the features: their mean, then their deviation from it."""
    num_features = features_ND.shape[1]
    total = weights_N.sum()
    mean_D = weights_N.new_zeros(num_features)
    for rows in row_blocks(len(features_ND), 8 * num_features):
        mean_D += weights_N[rows] @ features_ND[rows].double()
    mean_D /= total
    variance_D = torch.zeros_like(mean_D)
    for rows in row_blocks(len(features_ND), 8 * num_features):
        variance_D += weights_N[rows] @ (features_ND[rows].double() - mean_D).square_()
    variance_D /= total
    # A deviation of a millionth of the mean is what rounding to float32 leaves of equal values.
    floor_D = 1e-12 * mean_D.square() + 1e-30
    inverse_D = torch.where(variance_D > floor_D, variance_D.clamp(min=1e-30).rsqrt(), 0.0)
    return Scaling(mean_D, inverse_D)
