"""CAL: examples whose predictions differ most from their neighbors'.

An example's score is the mean Kullback-Leibler divergence KL(neighbor || example) of the
predictions. Neighbors are the examples with the nearest features, each scaled to length 1. The
LARGEST scores are kept, at the decision boundary.

The authors search an unlabelled example's neighbors among the labelled ones. Here they are among
the examples given: those of the same class when balanced.

Shapes: N examples, C classes, D features, R rows of a block, M neighbors, K budget.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategy import CLASSES, built_in
from lipt.core.selection.vectors import Rows, Vectors
from lipt.core.signals.signals import Signals, probabilities_of

# Probabilities are computed from float32 errors, which resolve the label's to about 1e-7. Smaller
# ones are raised to this, so that no single class dominates a divergence.
SMALLEST_PROBABILITY = 1e-8
# A block's distances and probabilities should stay in the cache.
_BLOCK_BYTES = 8 * 1024**2
# Relative to a squared length of 1: maximum rounding in the distance of equal features.
_RESOLUTION = 1e-12


@built_in(
    summary="predictions that differ most from those of the nearest neighbors",
    paper=(
        'Margatina et al. 2021, "Active Learning by Acquiring Contrastive Examples" '
        "(arXiv:2109.03764)"
    ),
    cost="N^2 d",
    # Before 3, neighbours among more than 100,000 examples were searched approximately.
    revision=3,
    kinds=CLASSES,
)
def cal(
    signals: Signals,
    budget: int,
    *,
    num_neighbors: Annotated[int, Field(ge=1), "nearest examples that each is compared with"] = 10,
) -> Selection:
    """Keep the `budget` examples that differ most from their neighbors, largest first."""
    return keep_largest(contrast(signals, num_neighbors), budget)


def contrast(signals: Signals, num_neighbors: int) -> Tensor:
    """The mean divergence from the nearest neighbors, 0 without any; N float32."""
    num_examples, num_classes = signals.errors_NC.shape
    num_neighbors = min(num_neighbors, num_examples - 1)
    scores_N = torch.zeros(num_examples, device=signals.errors_NC.device)
    if num_neighbors == 0:
        return scores_N
    neighbors_NM = nearest_neighbors(signals.features_ND, num_neighbors)
    for rows in row_blocks(num_examples, 32 * num_neighbors * num_classes, _BLOCK_BYTES):
        ids_R = torch.arange(rows.start, rows.stop, device=scores_N.device)
        own_R1C = _probabilities(signals, ids_R[:, None])
        others_RMC = _probabilities(signals, neighbors_NM[rows])
        divergences_RMC = others_RMC * (others_RMC.log() - own_R1C.log())
        scores_N[rows] = divergences_RMC.sum(dim=-1).mean(dim=-1).float()
    return scores_N


def _probabilities(signals: Signals, ids: Tensor) -> Tensor:
    errors, labels = signals.errors_NC[ids], signals.labels_N[ids]
    return probabilities_of(errors, labels, torch.float64).clamp_(min=SMALLEST_PROBABILITY)


def nearest_neighbors(features_ND: Tensor, count: int) -> Tensor:
    """The other examples with the nearest directions, nearest first, ties by id; N x count."""
    vectors = Rows(Vectors(features_ND))
    norms_N = vectors.squares_N.sqrt()
    inverses_N = norms_N.reciprocal().masked_fill(norms_N == 0, 0.0)
    # Squared lengths of the directions; 0 for a feature of zeros.
    lengths_N = (norms_N > 0).double()
    parts = []
    for rows in row_blocks(len(vectors), 16 * len(vectors), _BLOCK_BYTES):
        ids_R = torch.arange(rows.start, rows.stop, device=norms_N.device)
        distances_RN = vectors.products(ids_R)
        distances_RN *= -2 * inverses_N[ids_R, None]
        distances_RN *= inverses_N
        distances_RN += lengths_N
        distances_RN += lengths_N[ids_R, None] * (1 - _RESOLUTION)
        distances_RN.clamp_(min=0.0)
        distances_RN[ids_R - rows.start, ids_R] = torch.inf
        parts.append(nearest(distances_RN, count))
    return torch.cat(parts)


def nearest(distances_RN: Tensor, count: int) -> Tensor:
    """Columns of each row's smallest distances, ties to the lowest; overwrites them; R x count."""
    num_columns = distances_RN.shape[1]
    id_bits = max(24, num_columns.bit_length())
    keys_RN = distances_RN.view(torch.int64)
    keys_RN.add_(1 << (id_bits - 1)).bitwise_and_(-(1 << id_bits))
    keys_RN.bitwise_or_(torch.arange(num_columns, device=keys_RN.device))
    return keys_RN.topk(count, dim=-1, largest=False).indices
