"""CRAIG and AdaCore: examples whose gradients stand for those of all others.

Shapes: N examples, C classes, D features, F features with the 1 of the bias, K budget.
Source: besides those below, Shazeer and Stern 2018, "Adafactor" (arXiv:1804.04235).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.common.targets.kinds import TargetKind
from lipt.core.selection.pairs import proximity
from lipt.core.selection.selection import Selection
from lipt.core.selection.solvers.representatives import (
    ComputedLevels,
    Partitions,
    StoredLevels,
    choose_representatives,
)
from lipt.core.selection.strategy import built_in
from lipt.core.selection.vectors import CACHED_BYTES, Vectors, gradients_of, with_bias
from lipt.core.signals.signals import Signals


@built_in(
    summary="nearest to all gradients, weighted by how many each one stands for",
    paper=(
        'Mirzasoleiman et al. 2020, "Coresets for Data-efficient Training of Machine Learning '
        'Models" (arXiv:1906.01827)'
    ),
    cost="N^2 (C + d)",
    returns_weights=True,
    revision=1,
)
def craig(
    signals: Signals,
    budget: int,
    *,
    seed: int,
    metric: Annotated[
        Literal["gradients", "errors"],
        "distances of last-layer gradients, or of gradients by the logits alone",
    ] = "gradients",
    partitions: Partitions = 0,
) -> Selection:
    """Keep the examples that are nearest to all others, in the order of what they add.

    Replacing each gradient by its nearest chosen one changes the sum of all gradients by no more
    than the sum of the distances. Minimizing that bound over subsets is facility location with
    similarity "largest distance minus distance". A chosen example weighs as much as its cluster,
    itself included: the weights sum to N.
    """
    chosen_K, levels = choose_representatives(
        proximity(gradients_of(signals) if metric == "gradients" else Vectors(signals.errors_NC)),
        budget,
        partitions=partitions,
        seed=seed,
    )
    sizes_K = cluster_sizes(levels, chosen_K)
    return Selection(chosen_K, sizes_K.to(torch.float32))


def cluster_sizes(levels: StoredLevels | ComputedLevels, chosen_K: Tensor) -> Tensor:
    """How many examples each chosen one represents, in the order of choice; K int64.

    Every example counts once, with the chosen one that it is most similar to. Ties go to the lowest
    id, but a chosen example always represents itself.
    """
    ids_K, order_K = chosen_K.sort()
    best_N = torch.full((len(levels),), -1, dtype=torch.int32, device=chosen_K.device)
    owners_N = torch.zeros(len(levels), dtype=torch.int64, device=chosen_K.device)
    for rows in row_blocks(len(ids_K), 16 * len(levels)):
        highest_N, places_N = levels.rows(ids_K[rows]).max(dim=0)
        # An equal level of a higher id does not count.
        better_N = highest_N > best_N
        best_N[better_N] = highest_N[better_N].int()
        owners_N[better_N] = places_N[better_N] + rows.start
    owners_N[ids_K] = torch.arange(len(ids_K), device=chosen_K.device)
    sizes_K = torch.empty_like(chosen_K)
    sizes_K[order_K] = owners_N.bincount(minlength=len(ids_K))
    return sizes_K


def _relative(curvatures_n: Tensor) -> Tensor:
    # Distances are only compared: their common scale is left out.
    mean = curvatures_n.mean()
    return curvatures_n / mean if mean > 0 else torch.ones_like(curvatures_n)


def mean_curvatures(signals: Signals) -> tuple[Tensor, Tensor]:
    """The means of the Hessian's diagonal over features, C, and over classes, F; float64."""
    num_examples, num_classes = signals.errors_NC.shape
    num_features = signals.features_ND.shape[1] + int(signals.has_bias)
    device = signals.features_ND.device
    by_class_C = torch.zeros(num_classes, dtype=torch.float64, device=device)
    by_feature_F = torch.zeros(num_features, dtype=torch.float64, device=device)
    row_bytes = 8 * (num_classes + num_features)
    for rows in row_blocks(num_examples, row_bytes, CACHED_BYTES):
        # |e| is p, or 1 - p of the label: p (1 - p) either way. Ridge heads have larger ones.
        shares_BC = signals.errors_NC[rows].double().abs().clamp_(max=1.0)
        spreads_BC = shares_BC * (1 - shares_BC)
        if signals.kind is TargetKind.NUMBER:
            spreads_BC.fill_(1.0)
        squares_BF = with_bias(signals.features_ND[rows].double(), float(signals.has_bias)).square()
        by_class_C += squares_BF.mean(dim=1) @ spreads_BC
        by_feature_F += spreads_BC.mean(dim=1) @ squares_BF
    return by_class_C / num_examples, by_feature_F / num_examples


def precondition(
    signals: Signals,
    *,
    damping: Annotated[float, Field(gt=0), "added to curvatures, as a share of their mean"] = 0.01,
) -> Signals:
    """Divide the gradients by the Hessian's factored diagonal; the bias becomes a feature.

    Damping keeps features that are nearly always 0 from being blown up.
    """
    by_class_C, by_feature_F = (_relative(means_n) for means_n in mean_curvatures(signals))
    features_NF = signals.features_ND.new_empty(len(signals), len(by_feature_F))
    errors_NC = torch.empty_like(signals.errors_NC)
    for rows in row_blocks(len(signals), 16 * (len(by_class_C) + len(by_feature_F))):
        errors_NC[rows] = signals.errors_NC[rows] / (by_class_C + damping)
        features_BF = with_bias(signals.features_ND[rows], float(signals.has_bias))
        features_NF[rows] = features_BF / (by_feature_F + damping)
    return replace(signals, errors_NC=errors_NC, features_ND=features_NF, has_bias=False)


@built_in(
    summary="craig on gradients divided by the diagonal of the last layer's Hessian",
    paper=(
        'Pooladzandi et al. 2022, "Adaptive Second Order Coresets for Data-efficient Machine '
        'Learning" (arXiv:2207.13887)'
    ),
    cost="N^2 (C + d)",
    returns_weights=True,
    prepare=precondition,
    revision=1,
)
def adacore(signals: Signals, budget: int, *, seed: int, partitions: Partitions = 0) -> Selection:
    """CRAIG on gradients divided by the Hessian's diagonal, by which Newton steps are compared.

    The paper estimates the diagonal by Hutchinson's probes. For the last layer it is known in
    closed form: mean_i p_ic (1 - p_ic) h_if^2, with a curvature of 1 for the squared error of
    numbers. A gradient divided by it is no outer product. So the diagonal is factored into its row
    and column means, a curvature per class and one per feature, as in Adafactor.
    """
    return craig(signals, budget, seed=seed, partitions=partitions)
