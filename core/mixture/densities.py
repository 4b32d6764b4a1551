"""Densities: each source as one Gaussian per class, and the target as their mixture.

A closed form without learners. Features are projected on the pool's principal components. Each
source has a mean for every class and one covariance, partly that of all sources. Numbers to predict
are features as well: a source with another rule, or with wrong numbers, then has another shape.

The weights maximize the likelihood of the target's examples, by expectation maximization.

Shapes: N examples, K sources, D features, P components, C classes.
Source: Dempster et al. 1977; with class-conditional Gaussians, as in linear discriminants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.pretraining.simplex import uniform
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import Regression, Target

NUM_COMPONENTS = 32
_NUM_ITERATIONS = 500
# Share of the common covariance in a source's own, and of the mean variance on its diagonal.
_COMMON, _RIDGE = 0.1, 1e-4
# A weight below this has no logarithm.
_SMALLEST = 1e-12


@dataclass(frozen=True)
class Featured:
    """Examples as features, N x D, and their targets as `Target` takes them."""

    features_ND: Tensor
    targets_N: Tensor


def log_densities(sources: Sequence[Featured], examples: Featured, target: Target) -> Tensor:
    """The log density of each example and its target under each source; N x K float64."""
    pool_ND = torch.cat([part.features_ND.double() for part in sources])
    mean_D, deviation_D = pool_ND.mean(dim=0), pool_ND.std(dim=0)
    scale_D = torch.where(deviation_D > 0, deviation_D, torch.inf)
    standard_ND = (pool_ND - mean_D) / scale_D
    _, directions_DD = torch.linalg.eigh(standard_ND.T @ standard_ND)
    directions_DP = directions_DD[:, -NUM_COMPONENTS:]

    def placed(part: Featured) -> tuple[Tensor, Tensor]:
        """Components and the class; numbers to predict are components, in one class."""
        points_NP = (part.features_ND.double() - mean_D) / scale_D @ directions_DP
        if target.kind is TargetKind.CLASS:
            return points_NP, part.targets_N
        values_NT = part.targets_N.double()
        if isinstance(target, Regression):
            values_NT = target.learned(values_NT)
        no_class_N = torch.zeros(len(values_NT), dtype=torch.int64)
        return torch.cat([points_NP, values_NT], dim=1), no_class_N

    parts = [placed(part) for part in sources]
    num_classes = target.num_outputs if target.kind is TargetKind.CLASS else 1
    fitted = [_means_and_rest(*part, num_classes) for part in parts]
    num_examples = sum(len(classes_N) for _, classes_N in parts)
    points_NP, classes_N = placed(examples)
    common_PP = (
        torch.stack([rest_NP.T @ rest_NP for _, rest_NP in fitted]).sum(dim=0) / num_examples
    )
    columns = []
    for (means_CP, rest_NP), (_, own_N) in zip(fitted, parts, strict=True):
        own_PP = rest_NP.T @ rest_NP / len(rest_NP)
        mixed_PP = (1 - _COMMON) * own_PP + _COMMON * common_PP
        mixed_PP += _RIDGE * mixed_PP.trace() / len(mixed_PP) * torch.eye(len(mixed_PP))
        root_PP = torch.linalg.cholesky(mixed_PP)
        white_PN = torch.linalg.solve_triangular(
            root_PP, (points_NP - means_CP[classes_N]).T, upper=False
        )
        counts_C = own_N.bincount(minlength=num_classes) + 1
        priors_C = (counts_C / counts_C.sum()).log().double()
        distance_N = white_PN.square().sum(dim=0) / 2
        columns.append(priors_C[classes_N] - distance_N - root_PP.diagonal().log().sum())
    return torch.stack(columns, dim=1)


def expectation_maximization(log_densities_NK: Tensor) -> Tensor:
    """The weights with the largest likelihood, K float64."""
    weights_K = uniform(log_densities_NK.shape[1])
    for _ in range(_NUM_ITERATIONS):
        shares_NK = (log_densities_NK + weights_K.clamp_min(_SMALLEST).log()).softmax(dim=1)
        weights_K = shares_NK.mean(dim=0)
    return weights_K


def _means_and_rest(
    points_NP: Tensor, classes_N: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """The mean of each class, with the source's mean as one more example; and the rest."""
    member_NC = functional.one_hot(classes_N, num_classes).double()
    sums_CP = member_NC.T @ points_NP + points_NP.mean(dim=0)
    means_CP = sums_CP / (member_NC.sum(dim=0) + 1)[:, None]
    return means_CP, points_NP - means_CP[classes_N]
