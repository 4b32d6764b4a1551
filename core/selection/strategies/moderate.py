"""Moderate: keep the examples that are neither typical nor odd for their class.

Each example has a distance from the center of its class, the median of every feature. The kept
examples are one window of ranks around the median distance, over all classes together. A class
whose distances lie apart may get no share; balanced, every class has its own window.

Shapes: N examples, n of one class, C classes, D features, R rows of a block, K budget.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategy import FEATURES, Balance, built_in
from lipt.core.signals.signals import Signals

# For the columns of a class that are sorted together.
_SORTED_BYTES = 64 * 1024**2


@built_in(
    summary="kept: in the middle of the distances from the center of their class",
    paper='Xia et al. 2023, "Moderate Coreset" (ICLR)',
    cost="N (d + log N)",
    balance=Balance.ON_REQUEST,
    needs=FEATURES,
    # Before, centers were means, and the examples nearest to the median distance were kept.
    revision=1,
)
def moderate(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples in the middle of the order by distance, nearest first."""
    # In float32 equal examples tie, in data set order.
    distances_N = center_distances(signals).float()
    return unweighted(in_the_middle(distances_N, budget))


def in_the_middle(values_N: Tensor, budget: int) -> Tensor:
    """Positions of the `budget` values with ranks around the median, ascending; ties keep order."""
    sorted_N, order_N = values_N.sort(stable=True)
    start = round((len(values_N) - budget) / 2)
    stop = start + budget
    first = int(torch.searchsorted(sorted_N, sorted_N[start]))
    end = min(int(torch.searchsorted(sorted_N, sorted_N[start], right=True)), stop)
    return torch.cat([order_N[first : first + end - start], order_N[end:stop]])


def center_distances(signals: Signals) -> Tensor:
    """|h_i - center of its class|; N float64."""
    features_ND, labels_N = signals.features_ND, signals.labels_N
    centers_CD = _medians(signals)
    return torch.cat(
        [
            torch.linalg.vector_norm(
                features_ND[rows].double() - centers_CD[labels_N[rows]], dim=-1
            )
            for rows in row_blocks(len(labels_N), 24 * features_ND.shape[1])
        ]
    )


def _medians(signals: Signals) -> Tensor:
    """C x D float64; zeros for a class without examples."""
    features_ND, labels_N = signals.features_ND, signals.labels_N
    counts = labels_N.bincount().tolist()
    num_features = features_ND.shape[1]
    medians_CD = torch.zeros(
        len(counts), num_features, dtype=torch.float64, device=features_ND.device
    )
    for label, count in enumerate(counts):
        if not count:
            continue
        rows_n = torch.nonzero(labels_N == label).flatten()
        for columns in row_blocks(num_features, 24 * count, _SORTED_BYTES):
            sorted_nd = features_ND[rows_n, columns].float().sort(dim=0).values
            middle_2d = sorted_nd[[(count - 1) // 2, count // 2]]
            medians_CD[label, columns] = middle_2d.double().mean(dim=0)
    return medians_CD
