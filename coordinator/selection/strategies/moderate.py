"""Moderate: keep the examples that are neither typical nor odd for their class.

Examples near a class's center repeat each other, those far from it are often wrong or
foreign. KEPT are the ones whose distance from the center of their class is closest to
the median distance in that class.

Shapes: N examples, n of one class, C classes, D features, R rows of a block, K budget.
Source: Xia et al. 2023 (ICLR).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.coordinator.selection.selection import Selection, keep_largest
from lipt.coordinator.selection.strategy import FEATURES, Strategy
from lipt.coordinator.signals.blocks import row_blocks
from lipt.coordinator.signals.signals import Signals


def moderate(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples closest to their class's median distance, closest first.

    The answer is what is kept, not what is removed. Each example is measured by its own
    class even when classes do not get equal shares. Ties keep data set order.
    """
    # Of two examples around the median both gaps are the same: only exact ones tie, so
    # they are taken of distances that float64 adds and halves without rounding.
    distances_N = center_distances(signals).float().double()
    gaps_N = (distances_N - class_medians(distances_N, signals.labels_N)).abs()
    return keep_largest(-gaps_N, budget)


def center_distances(signals: Signals) -> Tensor:
    """|h_i - center of its class|, the center being the mean feature; N float64."""
    features_ND, labels_N = signals.features_ND, signals.labels_N
    counts_C = labels_N.bincount()
    sums_CD = torch.zeros(
        len(counts_C), features_ND.shape[1], dtype=torch.float64, device=features_ND.device
    )
    blocks = list(row_blocks(len(labels_N), 24 * features_ND.shape[1]))
    for rows in blocks:
        sums_CD.index_add_(0, labels_N[rows], features_ND[rows].double())
    centers_CD = sums_CD / counts_C.clamp(min=1)[:, None]
    return torch.cat(
        [
            torch.linalg.vector_norm(
                features_ND[rows].double() - centers_CD[labels_N[rows]], dim=-1
            )
            for rows in blocks
        ]
    )


def class_medians(distances_N: Tensor, labels_N: Tensor) -> Tensor:
    """The median distance in each example's class; of an even number, between the middle two."""
    order_N = distances_N.argsort(stable=True)
    order_N = order_N[labels_N[order_N].argsort(stable=True)]
    counts_C = labels_N.bincount()
    starts_C = counts_C.cumsum(dim=0) - counts_C
    # A class without examples has no median, and no example that asks for it.
    last_C = (counts_C - 1).clamp(min=0)
    sorted_N = distances_N[order_N]
    final = len(sorted_N) - 1
    lower_C = sorted_N[(starts_C + last_C // 2).clamp(max=final)]
    upper_C = sorted_N[(starts_C + (last_C + 1) // 2).clamp(max=final)]
    return ((lower_C + upper_C) / 2)[labels_N]


STRATEGY = Strategy(
    function=moderate,
    summary="kept: closest to their class's median distance from its center",
    paper=(
        'Xia et al. 2023, "Moderate Coreset: A Universal Method of Data Selection for '
        'Real-world Data-efficient Deep Learning" (ICLR)'
    ),
    cost="N d",
    needs=FEATURES,
)
