"""CAL: examples on which the model disagrees with itself about their neighbors.

An example's score is the mean symmetric Kullback-Leibler divergence between its
prediction and those of the examples with the nearest features. The LARGEST are kept:
alike to the model's eye, unlike in its answer, they lie at its decision boundary.

Neighbors are looked for among the examples that the strategy is given: those of the same
class when it is balanced. They are found block by block, and no N x N matrix is sorted.

Shapes: N examples, C classes, R rows of a block, M neighbors, K budget.
Source: Margatina et al. 2021 (arXiv:2109.03764).
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lipt.coordinator.selection.gradients.rows import Rows
from lipt.coordinator.selection.gradients.vectors import Vectors
from lipt.coordinator.selection.selection import Selection, keep_largest
from lipt.coordinator.selection.strategy import Strategy
from lipt.coordinator.signals.blocks import row_blocks
from lipt.coordinator.signals.signals import Signals, probabilities_of

# Probabilities are read off float32 errors, which resolve the label's to about 1e-7.
# Smaller ones count as this: no single class decides a divergence.
SMALLEST_PROBABILITY = 1e-8
# A block's distances are gone through several times: they should stay in the cache.
_BLOCK_BYTES = 8 * 1024**2


NumNeighbors = Annotated[int, Field(ge=1), "nearest examples that each is compared with"]


def cal(signals: Signals, budget: int, *, num_neighbors: NumNeighbors = 10) -> Selection:
    """Keep the `budget` examples that differ most from their neighbors, largest first.

    Ties keep data set order, among neighbors at the same distance, too.
    """
    return keep_largest(contrast(signals, num_neighbors), budget)


def contrast(signals: Signals, num_neighbors: int) -> Tensor:
    """The mean symmetric divergence from the nearest neighbors; N float32.

    From all others where there are fewer, and 0 for an example without any.
    """
    num_examples, num_classes = signals.errors_NC.shape
    num_neighbors = min(num_neighbors, num_examples - 1)
    scores_N = torch.zeros(num_examples, device=signals.errors_NC.device)
    if num_neighbors == 0:
        return scores_N
    neighbors_NM = nearest_neighbors(signals, num_neighbors)
    for rows in row_blocks(num_examples, 32 * num_neighbors * num_classes, _BLOCK_BYTES):
        ids_R = torch.arange(rows.start, rows.stop, device=scores_N.device)
        own_R1C = _probabilities(signals, ids_R[:, None])
        others_RMC = _probabilities(signals, neighbors_NM[rows])
        divergences_RMC = (own_R1C - others_RMC) * (own_R1C.log() - others_RMC.log())
        # The mean of both directions' divergence.
        scores_N[rows] = (divergences_RMC.sum(dim=-1).mean(dim=-1) / 2).float()
    return scores_N


def nearest_neighbors(signals: Signals, count: int) -> Tensor:
    """The examples with the nearest features to each, not itself; N x count, at most N - 1."""
    vectors = Rows(Vectors(signals.features_ND))
    parts = []
    for rows in row_blocks(len(vectors), 16 * len(vectors), _BLOCK_BYTES):
        ids_R = torch.arange(rows.start, rows.stop, device=vectors.squares_N.device)
        distances_RN = vectors.squared_distances(ids_R)
        distances_RN[ids_R - rows.start, ids_R] = torch.inf
        parts.append(nearest(distances_RN, count))
    return torch.cat(parts)


def nearest(distances_RN: Tensor, count: int) -> Tensor:
    """The columns of the smallest distances of each row, ties to the lowest; R x count.

    The bits of a float64 that is not negative, read as an integer, have the same order.
    Its last bits, rounded away, make room for the column: no two are equal, and copies of
    an example are at the same distance whatever rounding did.

    Args:
        distances_RN: float64, not negative; overwritten.
        count: how many, N at most.
    """
    num_columns = distances_RN.shape[1]
    id_bits = max(24, num_columns.bit_length())
    keys_RN = distances_RN.view(torch.int64)
    keys_RN.add_(1 << (id_bits - 1)).bitwise_and_(-(1 << id_bits))
    keys_RN.bitwise_or_(torch.arange(num_columns, device=keys_RN.device))
    return keys_RN.topk(count, dim=-1, largest=False).indices


def _probabilities(signals: Signals, ids: Tensor) -> Tensor:
    """Of examples in any arrangement, along a new last axis."""
    errors, labels = signals.errors_NC[ids], signals.labels_N[ids]
    return probabilities_of(errors, labels, torch.float64).clamp_(min=SMALLEST_PROBABILITY)


STRATEGY = Strategy(
    function=cal,
    summary="predictions that differ most from those of the nearest neighbors",
    paper=(
        'Margatina et al. 2021, "Active Learning by Acquiring Contrastive Examples" '
        "(arXiv:2109.03764)"
    ),
    cost="N^2 d",
)
