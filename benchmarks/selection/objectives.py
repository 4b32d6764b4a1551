"""Objectives of selections: one function per group, for all implementations, from the definition.

Nothing here calls the code of an implementation. Gradients are e (x) [h, 1]; products are taken in
float64 blocks.

Shapes: N examples, V validation ones, C classes, D features, B of a block, K chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.selection.workload import log_probabilities
from lipt.core.signals.signals import Signals
from lipt.core.signals.views import ValidationSignals

BLOCK_ROWS = 2048
NUM_RANDOM = 5


def craig(signals: Signals, chosen_K: Tensor) -> float:
    """The sum over all examples of the distance to the nearest chosen one of their class."""
    total = 0.0
    for rows_B, columns_K in _per_class(signals, chosen_K):
        products = _products(signals, rows_B, columns_K)
        squares_B = _squared_norms(signals, rows_B)
        squares_K = _squared_norms(signals, columns_K)
        distances = (squares_B[:, None] + squares_K - 2 * products).clamp_min(0).sqrt()
        total += float(distances.min(dim=1).values.sum())
    return total


def facility_location(signals: Signals, chosen_K: Tensor) -> float:
    """The sum over all examples of the greatest similarity (1 + cosine) / 2 to a chosen one."""
    norms_K = _squared_norms(signals, chosen_K).sqrt()
    total = 0.0
    for rows_B in torch.arange(len(signals)).split(BLOCK_ROWS):
        norms_B = _squared_norms(signals, rows_B).sqrt()
        cosines = _products(signals, rows_B, chosen_K) / (norms_B[:, None] * norms_K)
        total += float((0.5 + 0.5 * cosines).max(dim=1).values.sum())
    return total


def gradmatch(signals: Signals, chosen_K: Tensor, weights_K: Tensor) -> float:
    """|b - s sum w g| / |b| of a class, b its mean gradient; the mean over the classes.

    Libraries match the mean or the sum of a class, so each answer gets the one scale s
    that is best for it.
    """
    residuals = []
    for label in signals.labels_N.unique().tolist():
        rows_N = torch.nonzero(signals.labels_N == label).flatten()
        mine_K = signals.labels_N[chosen_K] == label
        target = _weighted_sum(signals, rows_N, torch.full((len(rows_N),), 1 / len(rows_N)))
        matched = _weighted_sum(signals, chosen_K[mine_K], weights_K[mine_K])
        scale = (matched * target).sum() / matched.square().sum().clamp_min(1e-30)
        residuals.append(float((target - scale * matched).norm() / target.norm()))
    return sum(residuals) / len(residuals)


def glister(signals: Signals, chosen_K: Tensor, learning_rate: float) -> float:
    """A class's mean validation loss after one step on its chosen examples; mean over classes.

    The step is the learning rate times the MEAN of the chosen gradients, off the last
    layer: choosing more than the budget does not make it longer.
    """
    losses = []
    for label in signals.labels_N.unique().tolist():
        mine_K = chosen_K[signals.labels_N[chosen_K] == label]
        shares_K = torch.full((len(mine_K),), learning_rate / len(mine_K))
        step = _weighted_sum(signals, mine_K, shares_K)
        held = ValidationSignals.of(signals).of_class(label)
        logits_VC = log_probabilities(held).double() - _with_one(held.features_ND) @ step.T
        losses.append(float(functional.cross_entropy(logits_VC, held.labels_N)))
    return sum(losses) / len(losses)


def random_chosen(signals: Signals, budget: int, seed: int, *, balanced: bool) -> Tensor:
    """As many as a strategy chooses, at random: what every objective is compared with."""
    generator = torch.Generator().manual_seed(seed)
    order_N = torch.randperm(len(signals), generator=generator)
    if not balanced:
        return order_N[:budget]
    labels = signals.labels_N.unique().tolist()
    return torch.cat(
        [order_N[signals.labels_N[order_N] == label][: budget // len(labels)] for label in labels]
    )


def _per_class(signals: Signals, chosen_K: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A block of a class's examples and the chosen ones of that class."""
    for label in signals.labels_N.unique().tolist():
        columns_K = chosen_K[signals.labels_N[chosen_K] == label]
        rows_N = torch.nonzero(signals.labels_N == label).flatten()
        for rows_B in rows_N.split(BLOCK_ROWS):
            yield rows_B, columns_K


def _with_one(features_ND: Tensor) -> Tensor:
    ones_N1 = features_ND.new_ones(len(features_ND), 1, dtype=torch.float64)
    return torch.cat([features_ND.double(), ones_N1], dim=1)


def _products(signals: Signals, rows_B: Tensor, columns_K: Tensor) -> Tensor:
    errors, features = signals.errors_NC.double(), signals.features_ND
    cosines: Tensor = _with_one(features[rows_B]) @ _with_one(features[columns_K]).T
    return cosines.mul_(errors[rows_B] @ errors[columns_K].T)


def _squared_norms(signals: Signals, rows_B: Tensor) -> Tensor:
    squares_B: Tensor = signals.errors_NC[rows_B].double().square().sum(dim=1)
    return squares_B * _with_one(signals.features_ND[rows_B]).square().sum(dim=1)


def _weighted_sum(signals: Signals, rows_K: Tensor, weights_K: Tensor) -> Tensor:
    """The sum of w g over the rows, as C x (D + 1)."""
    errors_KC = signals.errors_NC[rows_K].double() * weights_K.double()[:, None]
    return errors_KC.T @ _with_one(signals.features_ND[rows_K])
