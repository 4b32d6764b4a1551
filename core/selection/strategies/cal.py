"""CAL: examples on which the model disagrees with itself about their neighbors.

An example's score is the mean Kullback-Leibler divergence of the predictions for its
neighbors from its own, KL(neighbor || example). Neighbors are the examples with the nearest
features, each scaled to length 1. The LARGEST scores are kept, at the decision boundary.

The authors search an unlabelled example's neighbors among the labelled ones. Here they are among
the examples given: those of the same class when balanced.

Shapes: N examples, C classes, R rows of a block, M neighbors, K budget.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.solvers.neighbours import Search, nearest_neighbours
from lipt.core.selection.strategy import CLASSES, Strategy
from lipt.core.signals.signals import Signals, probabilities_of

# Probabilities are read off float32 errors, which resolve the label's to about 1e-7.
# Smaller ones count as this: no single class decides a divergence.
SMALLEST_PROBABILITY = 1e-8
# A block's probabilities should stay in the cache.
_BLOCK_BYTES = 8 * 1024**2

Divergence = Literal["one_way", "symmetric"]


def cal(
    signals: Signals,
    budget: int,
    *,
    num_neighbors: Annotated[int, Field(ge=1), "nearest examples that each is compared with"] = 10,
    divergence: Annotated[
        Divergence, "of the neighbors from the example, or the mean of both ways"
    ] = "one_way",
    normalized: Annotated[bool, "compare features by direction alone"] = True,
    search: Search = "auto",
) -> Selection:
    """Keep the `budget` examples that differ most from their neighbors, largest first."""
    scores_N = contrast(
        signals, num_neighbors, divergence=divergence, normalized=normalized, search=search
    )
    return keep_largest(scores_N, budget)


def contrast(
    signals: Signals,
    num_neighbors: int,
    *,
    divergence: Divergence = "one_way",
    normalized: bool = True,
    search: Search = "auto",
) -> Tensor:
    """The mean divergence of the nearest neighbors; N float32.

    From all others where there are fewer, and 0 for an example without any.
    """
    num_examples, num_classes = signals.errors_NC.shape
    num_neighbors = min(num_neighbors, num_examples - 1)
    scores_N = torch.zeros(num_examples, device=signals.errors_NC.device)
    if num_neighbors == 0:
        return scores_N
    neighbors_NM = nearest_neighbours(
        signals.features_ND, num_neighbors, normalized=normalized, search=search
    )
    for rows in row_blocks(num_examples, 32 * num_neighbors * num_classes, _BLOCK_BYTES):
        ids_R = torch.arange(rows.start, rows.stop, device=scores_N.device)
        own_R1C = _probabilities(signals, ids_R[:, None])
        others_RMC = _probabilities(signals, neighbors_NM[rows])
        # Both ways added up, the logarithms' difference is weighed by the probabilities'.
        weights_RMC = others_RMC if divergence == "one_way" else (others_RMC - own_R1C) / 2
        divergences_RMC = weights_RMC * (others_RMC.log() - own_R1C.log())
        scores_N[rows] = divergences_RMC.sum(dim=-1).mean(dim=-1).float()
    return scores_N


def _probabilities(signals: Signals, ids: Tensor) -> Tensor:
    errors, labels = signals.errors_NC[ids], signals.labels_N[ids]
    return probabilities_of(errors, labels, torch.float64).clamp_(min=SMALLEST_PROBABILITY)


CAL = Strategy(
    function=cal,
    summary="predictions that differ most from those of the nearest neighbors",
    paper=(
        'Margatina et al. 2021, "Active Learning by Acquiring Contrastive Examples" '
        "(arXiv:2109.03764)"
    ),
    cost="N^2 d",
    # Before 1, the divergence was that of both ways, and lengths counted; before 2, neighbours
    # among more than 100,000 examples were exact.
    revision=2,
    kinds=CLASSES,
)
