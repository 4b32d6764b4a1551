"""Scores of one model, of which the largest are kept, and Moderate, which keeps the middle.

CAL's score is the mean Kullback-Leibler divergence KL(neighbor || example) of the predictions.
Neighbors are among the examples given: those of the same class when balanced.

Shapes: N examples, B of a block, C classes, D features, L learners, R rows of a block, M neighbors,
n of one class, K budget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.core.passes import row_blocks
from lipt.core.selection.selection import Selection, keep_largest, unweighted
from lipt.core.selection.strategy import (
    CLASSES,
    Balance,
    Cost,
    Growth,
    built_in,
)
from lipt.core.selection.vectors import Vectors, other_distances
from lipt.core.signals.dynamics import Dynamics, mean_over_learners
from lipt.core.signals.signals import probabilities_of
from lipt.core.signals.views import Features, GradientNorms, LastLayer, mean_over_models
from lipt.data.groups import members

Models = Annotated[
    Literal["merged", "learners"],
    "error norm of the weights that are selected on, or its mean over the learners",
]
Parameters = Annotated[
    Literal["last_layer", "all"],
    "which parameters the gradient is taken by; all costs a backward pass",
]
# Probabilities and their scores, in float32 and float64.
_BYTES_PER_CLASS = 24
_PAUL = 'Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075)'
_COLEMAN = 'Coleman et al. 2020, "Selection via Proxy" (arXiv:1906.11829)'


@built_in(
    summary="largest error norm |softmax - onehot|",
    paper=_PAUL,
    cost=Cost(Growth.LINEAR, "N C"),
    averages=True,
    needs=lambda options: Dynamics if options["models"] == "learners" else LastLayer,
    revision=1,
)
def el2n(view: LastLayer | Dynamics, budget: int, *, models: Models = "merged") -> Selection:
    """Keep the `budget` examples with the largest error norm |softmax - onehot|, worst first.

    `models=learners` takes the mean over learners that were not trained on the example,
    `pretraining=epochs:NxR` over R models of an ordinary warm-up, as the paper.
    """
    if isinstance(view, Dynamics):
        return keep_largest(mean_over_learners(view.error_norms_NL, view.counted_NL), budget)
    return keep_largest(mean_over_models(view, error_norms), budget)


def error_norms(layer: LastLayer) -> Tensor:
    """|e_i|; N float32."""
    # The dtype is the sum's: half-precision errors are not copied.
    norms_N: Tensor = torch.linalg.vector_norm(layer.errors_NC, dim=-1, dtype=torch.float32)
    return norms_N


@built_in(
    summary="largest gradient norm",
    paper=_PAUL,
    cost=Cost(Growth.LINEAR, "N (C + d)"),
    averages=True,
    needs=lambda options: GradientNorms if options["parameters"] == "all" else LastLayer,
)
def grand(
    view: LastLayer | GradientNorms, budget: int, *, parameters: Parameters = "last_layer"
) -> Selection:
    """Keep the `budget` examples with the largest gradient norm, largest first.

    The paper averages over ten models at initialization, like `pretraining=epochs:1x10`; the
    default uses theta_p. By the last layer's parameters it is |e| sqrt(1 + |h|^2), exact and free.
    By all parameters it takes a backward pass per example, some hundred times the work.
    """
    if isinstance(view, LastLayer):
        return keep_largest(mean_over_models(view, last_layer_norms), budget)
    return keep_largest(mean_over_models(view, lambda norms: norms.gradient_norms_N), budget)


def last_layer_norms(layer: LastLayer) -> Tensor:
    """|e_i| sqrt(1 + |h_i|^2): the norm of e_i (x) [h_i, 1]; N. Without a bias there is no 1."""
    feature_norms_N: Tensor = torch.linalg.vector_norm(
        layer.features_ND, dim=-1, dtype=torch.float32
    )
    return error_norms(layer) * (feature_norms_N.square() + float(layer.has_bias)).sqrt()


@built_in(
    summary="largest entropy of the probabilities",
    paper=_COLEMAN,
    cost=Cost(Growth.LINEAR, "N C"),
    kinds=CLASSES,
)
def entropy(layer: LastLayer, budget: int) -> Selection:
    """Keep the `budget` examples with the largest entropy, most uncertain first.

    DeepCore's unbalanced entropy keeps the most certain examples.
    """
    return keep_uncertain(layer, budget, entropies)


def entropies(probabilities_BC: Tensor) -> Tensor:
    """-sum_c p_c log p_c in nats, from 0 (certain) to log C; B."""
    parts_BC: Tensor = torch.special.entr(probabilities_BC)
    return parts_BC.sum(dim=-1, dtype=torch.float64)


@built_in(
    summary="smallest margin between the two largest probabilities",
    paper=_COLEMAN,
    cost=Cost(Growth.LINEAR, "N C"),
    kinds=CLASSES,
)
def margin(layer: LastLayer, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest margin, most uncertain first."""
    return keep_uncertain(layer, budget, negative_margins)


def negative_margins(probabilities_BC: Tensor) -> Tensor:
    """The second largest probability (0 of a single class) minus the largest; B."""
    if probabilities_BC.shape[1] == 1:
        return -probabilities_BC[:, 0]
    top_B2 = probabilities_BC.topk(2, dim=-1).values
    return top_B2[:, 1] - top_B2[:, 0]


@built_in(
    summary="smallest probability of the most likely class",
    paper=_COLEMAN,
    cost=Cost(Growth.LINEAR, "N C"),
    kinds=CLASSES,
)
def least_confidence(layer: LastLayer, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest confidence, most uncertain first.

    DeepCore's ranks by logits, which shifting them changes.
    """
    return keep_uncertain(layer, budget, lambda probabilities_BC: -probabilities_BC.amax(dim=-1))


def keep_uncertain(
    layer: LastLayer, budget: int, uncertainty: Callable[[Tensor], Tensor]
) -> Selection:
    """Keep the examples with the largest uncertainty, computed from B x C probabilities."""
    errors_NC, labels_N = layer.errors_NC, layer.labels_N
    scores_N = torch.empty(len(layer), device=errors_NC.device)
    for rows in row_blocks(len(layer), errors_NC.shape[1] * _BYTES_PER_CLASS):
        # Half precision may have rounded errors outside the range of a softmax.
        probabilities_BC = probabilities_of(errors_NC[rows], labels_N[rows]).clamp_(0, 1)
        scores_N[rows] = uncertainty(probabilities_BC).float()
    return keep_largest(scores_N, budget)


# Probabilities are computed from float32 errors, which resolve the label's to about 1e-7. Smaller
# ones are raised to this, so that no single class dominates a divergence.
SMALLEST_PROBABILITY = 1e-8
# A block's distances and probabilities should stay in the cache.
_BLOCK_BYTES = 8 * 1024**2


@built_in(
    summary="predictions least like those of the nearest neighbors",
    paper='Margatina et al. 2021, "Contrastive Examples" (arXiv:2109.03764)',
    cost=Cost(Growth.PAIRS, "N^2 d"),
    # Before 3, neighbours among more than 100,000 examples were searched approximately.
    revision=3,
    kinds=CLASSES,
)
def cal(
    layer: LastLayer,
    budget: int,
    *,
    num_neighbors: Annotated[int, Field(ge=1), "nearest examples that each is compared with"] = 10,
) -> Selection:
    """Keep the `budget` examples that differ most from their neighbors, largest first."""
    return keep_largest(contrast(layer, num_neighbors), budget)


def contrast(layer: LastLayer, num_neighbors: int) -> Tensor:
    """The mean divergence from the nearest neighbors, 0 without any; N float32."""
    num_examples, num_classes = layer.errors_NC.shape
    num_neighbors = min(num_neighbors, num_examples - 1)
    scores_N = torch.zeros(num_examples, device=layer.errors_NC.device)
    if num_neighbors == 0:
        return scores_N
    neighbors_NM = nearest_neighbors(layer.features_ND, num_neighbors)
    for rows in row_blocks(num_examples, 32 * num_neighbors * num_classes, _BLOCK_BYTES):
        ids_R = torch.arange(rows.start, rows.stop, device=scores_N.device)
        own_R1C = _probabilities(layer, ids_R[:, None])
        others_RMC = _probabilities(layer, neighbors_NM[rows])
        divergences_RMC = others_RMC * (others_RMC.log() - own_R1C.log())
        scores_N[rows] = divergences_RMC.sum(dim=-1).mean(dim=-1).float()
    return scores_N


def _probabilities(layer: LastLayer, ids: Tensor) -> Tensor:
    errors, labels = layer.errors_NC[ids], layer.labels_N[ids]
    return probabilities_of(errors, labels, torch.float64).clamp_(min=SMALLEST_PROBABILITY)


def nearest_neighbors(features_ND: Tensor, count: int) -> Tensor:
    """The other examples with the nearest directions, nearest first, ties by id; N x count."""
    return torch.cat(
        [nearest(distances_RN, count) for _, distances_RN in other_distances(Vectors(features_ND))]
    )


def nearest(distances_RN: Tensor, count: int) -> Tensor:
    """Columns of each row's smallest distances, ties to the lowest; overwrites them; R x count."""
    num_columns = distances_RN.shape[1]
    id_bits = max(24, num_columns.bit_length())
    keys_RN = distances_RN.view(torch.int64)
    keys_RN.add_(1 << (id_bits - 1)).bitwise_and_(-(1 << id_bits))
    keys_RN.bitwise_or_(torch.arange(num_columns, device=keys_RN.device))
    return keys_RN.topk(count, dim=-1, largest=False).indices


# For the columns of a class that are sorted together.
_SORTED_BYTES = 64 * 1024**2


@built_in(
    summary="at a middle distance from the center of their class",
    paper='Xia et al. 2023, "Moderate Coreset" (ICLR)',
    cost=Cost(Growth.LINEAR, "N (d + log N)"),
    balance=Balance.ON_REQUEST,
    # Before, centers were means, and the examples nearest to the median distance were kept.
    revision=1,
)
def moderate(features: Features, budget: int) -> Selection:
    """Keep the `budget` examples in the middle of the order by distance, nearest first."""
    # In float32 equal examples tie, in data set order.
    distances_N = center_distances(features).float()
    return unweighted(in_the_middle(distances_N, budget))


def in_the_middle(values_N: Tensor, budget: int) -> Tensor:
    """Positions of the `budget` values with ranks around the median, ascending; ties keep order."""
    sorted_N, order_N = values_N.sort(stable=True)
    start = round((len(values_N) - budget) / 2)
    stop = start + budget
    first = int(torch.searchsorted(sorted_N, sorted_N[start]))
    end = min(int(torch.searchsorted(sorted_N, sorted_N[start], right=True)), stop)
    return torch.cat([order_N[first : first + end - start], order_N[end:stop]])


def center_distances(features: Features) -> Tensor:
    """|h_i - center of its class|; N float64."""
    features_ND, labels_N = features.features_ND, features.labels_N
    centers_CD = _medians(features)
    return torch.cat(
        [
            torch.linalg.vector_norm(
                features_ND[rows].double() - centers_CD[labels_N[rows]], dim=-1
            )
            for rows in row_blocks(len(labels_N), 24 * features_ND.shape[1])
        ]
    )


def _medians(features: Features) -> Tensor:
    """C x D float64; zeros for a class without examples."""
    features_ND, labels_N = features.features_ND, features.labels_N
    rows_C, num_features = members(labels_N), features_ND.shape[1]
    medians_CD = torch.zeros(
        len(rows_C), num_features, dtype=torch.float64, device=features_ND.device
    )
    for label, rows_n in enumerate(rows_C):
        if not (count := len(rows_n)):
            continue
        for columns in row_blocks(num_features, 24 * count, _SORTED_BYTES):
            sorted_nd = features_ND[rows_n, columns].float().sort(dim=0).values
            middle_2d = sorted_nd[[(count - 1) // 2, count // 2]]
            medians_CD[label, columns] = middle_2d.double().mean(dim=0)
    return medians_CD
