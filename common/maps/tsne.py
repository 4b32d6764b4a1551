"""t-SNE: places on a plane for points in many dimensions, such that neighbours stay neighbours.

Two axes of a principal component analysis show of ten classes the two or three that differ most;
this shows every group that there is. Distances between groups, and their sizes, mean little.

Exact, in N x N memory, for some thousand points. It starts from the principal components, so
that nothing is random.

Shapes: N points, D features.
Source: van der Maaten and Hinton 2008, "Visualizing Data using t-SNE" (JMLR 9); the start from
principal components is that of Kobak and Berens 2019 (Nature Communications 10).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

PERPLEXITY = 30.0
_STEPS = 300
# In the first steps neighbours are drawn together more strongly, so that groups form.
_EARLY_STEPS, _EXAGGERATION = 100, 12.0
_BISECTIONS = 40
_TINY = 1e-12


def tsne(
    features_ND: Tensor,
    *,
    perplexity: float = PERPLEXITY,
    steps: int = _STEPS,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Tensor:
    """The places of some points.

    Args:
        features_ND: finite, any floating type, on the CPU; at least one point.
        perplexity: about how many neighbours a point has; fewer where there are few points.
        steps: of gradient descent.
        on_progress: told how many of the steps are done.

    Returns:
        float32, N x 2, centred.
    """
    places_N2 = principal_components(features_ND)
    num_points = len(features_ND)
    if num_points < 4:  # which are all neighbours
        return places_N2
    neighbours = min(perplexity, (num_points - 1) / 3)
    affinities_NN = affinities(features_ND.float(), neighbours)
    places_N2 = 1e-4 * places_N2 / places_N2[:, 0].std().clamp(min=_TINY)
    velocity_N2, gains_N2 = torch.zeros_like(places_N2), torch.ones_like(places_N2)
    rate = max(num_points / _EXAGGERATION / 4, 50.0)
    for step in range(steps):
        early = step < _EARLY_STEPS
        gradient_N2 = gradient(affinities_NN * (_EXAGGERATION if early else 1.0), places_N2)
        turned = gradient_N2 * velocity_N2 > 0
        gains_N2 = torch.where(turned, gains_N2 * 0.8, gains_N2 + 0.2).clamp(min=0.01)
        velocity_N2 = (0.5 if early else 0.8) * velocity_N2 - rate * gains_N2 * gradient_N2
        places_N2 = places_N2 + velocity_N2
        places_N2 = places_N2 - places_N2.mean(dim=0)
        on_progress(step + 1, steps)
    return places_N2


def principal_components(features_ND: Tensor) -> Tensor:
    """The points along the two directions in which they vary most; float32, N x 2."""
    centred_ND = features_ND.double() - features_ND.double().mean(dim=0)
    _, directions_DD = torch.linalg.eigh(centred_ND.T @ centred_ND)
    places_N2 = centred_ND.new_zeros(len(centred_ND), 2)
    found = (centred_ND @ directions_DD.flip(1))[:, :2]
    places_N2[:, : found.shape[1]] = found
    return places_N2.float()


def affinities(features_ND: Tensor, perplexity: float) -> Tensor:
    """How near every two points are, as probabilities: symmetric, zero for itself, summing to 1.

    Each point's neighbourhood is as wide as gives it this perplexity.
    """
    num_points = len(features_ND)
    distances_NN = torch.cdist(features_ND, features_ND).square()
    distances_NN /= distances_NN.mean().clamp(min=_TINY)
    distances_NN.fill_diagonal_(math.inf)
    low_N1 = torch.full((num_points, 1), -20.0)
    high_N1 = torch.full((num_points, 1), 20.0)
    near_NN = distances_NN
    for _ in range(_BISECTIONS):  # of the logarithm of how narrow it is
        middle_N1 = (low_N1 + high_N1) / 2
        near_NN = torch.softmax(-distances_NN * middle_N1.exp(), dim=1)
        entropies_N1 = torch.special.entr(near_NN).sum(dim=1, keepdim=True)
        wide_N1 = entropies_N1 > math.log(perplexity)
        low_N1 = torch.where(wide_N1, middle_N1, low_N1)
        high_N1 = torch.where(wide_N1, high_N1, middle_N1)
    return (near_NN + near_NN.T) / (2 * num_points)


def gradient(affinities_NN: Tensor, places_N2: Tensor) -> Tensor:
    """Of the Kullback-Leibler divergence from the affinities to those of the places."""
    near_NN = torch.cdist(places_N2, places_N2).square_().add_(1).reciprocal_().fill_diagonal_(0)
    pull_NN = (affinities_NN - near_NN / near_NN.sum()).mul_(near_NN)
    return 4 * (pull_NN.sum(dim=1, keepdim=True) * places_N2 - pull_NN @ places_N2)
