"""Scores of one model: EL2N, GraNd, entropy, margin and least confidence; the largest are kept.

Shapes: N examples, B of a block, C classes, D features, L learners, K budget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategy import CLASSES, DYNAMICS, SIGNALS, Need, built_in
from lipt.core.signals.dynamics import mean_over_learners
from lipt.core.signals.signals import Signals, given, probabilities_of

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
    summary="largest error norm |softmax - onehot|, of the merged model or of the learners",
    paper=_PAUL,
    cost="N C",
    averages=True,
    needs=lambda options: DYNAMICS if options["models"] == "learners" else SIGNALS,
    revision=1,
)
def el2n(signals: Signals, budget: int, *, models: Models = "merged") -> Selection:
    """Keep the `budget` examples with the largest error norm |softmax - onehot|, worst first.

    The paper averages over several runs. `models=learners` takes the mean over learners that were
    not trained on the example, `pretraining=epochs:NxR` over R models of an ordinary warm-up.
    """
    if models == "learners":
        dynamics = signals.learners()
        norms_N = mean_over_learners(dynamics.error_norms_NL, dynamics.counted_NL)
        return keep_largest(norms_N, budget)
    return keep_largest(signals.mean_over_models(error_norms), budget)


def error_norms(signals: Signals) -> Tensor:
    """|e_i|; N float32."""
    # The dtype is the sum's: half-precision errors are not copied.
    norms_N: Tensor = torch.linalg.vector_norm(signals.errors_NC, dim=-1, dtype=torch.float32)
    return norms_N


@built_in(
    summary="largest gradient norm, by the last layer or by all parameters",
    paper=_PAUL,
    cost="N (C + d)",
    averages=True,
    needs=lambda options: (
        frozenset({Need.GRADIENT_NORMS}) if options["parameters"] == "all" else SIGNALS
    ),
)
def grand(signals: Signals, budget: int, *, parameters: Parameters = "last_layer") -> Selection:
    """Keep the `budget` examples with the largest gradient norm, largest first.

    The paper's score is the mean over ten models at initialization, like `pretraining=epochs:1x10`;
    the default uses theta_p. By the last layer's parameters it is |e| sqrt(1 + |h|^2), exact and
    free. By all parameters it takes a backward pass per example, some hundred times the work.
    """
    if parameters == "last_layer":
        return keep_largest(signals.mean_over_models(last_layer_norms), budget)
    norms_N = signals.mean_over_models(
        lambda model: given(model.gradient_norms_N, "gradient norms")
    )
    return keep_largest(norms_N, budget)


def last_layer_norms(signals: Signals) -> Tensor:
    """|e_i| sqrt(1 + |h_i|^2): the norm of e_i (x) [h_i, 1]; N. Without a bias there is no 1."""
    feature_norms_N: Tensor = torch.linalg.vector_norm(
        signals.features_ND, dim=-1, dtype=torch.float32
    )
    return error_norms(signals) * (feature_norms_N.square() + float(signals.has_bias)).sqrt()


@built_in(
    summary="most uncertain: largest entropy of the probabilities",
    paper=_COLEMAN,
    cost="N C",
    kinds=CLASSES,
)
def entropy(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the largest entropy, most uncertain first.

    DeepCore's unbalanced entropy keeps the most certain examples.
    """
    return keep_uncertain(signals, budget, entropies)


def entropies(probabilities_BC: Tensor) -> Tensor:
    """-sum_c p_c log p_c in nats, from 0 (certain) to log C; B."""
    parts_BC: Tensor = torch.special.entr(probabilities_BC)
    return parts_BC.sum(dim=-1, dtype=torch.float64)


@built_in(
    summary="most uncertain: smallest margin between the two largest probabilities",
    paper=_COLEMAN,
    cost="N C",
    kinds=CLASSES,
)
def margin(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest margin, most uncertain first."""
    return keep_uncertain(signals, budget, negative_margins)


def negative_margins(probabilities_BC: Tensor) -> Tensor:
    """The second largest probability (0 of a single class) minus the largest; B."""
    if probabilities_BC.shape[1] == 1:
        return -probabilities_BC[:, 0]
    top_B2 = probabilities_BC.topk(2, dim=-1).values
    return top_B2[:, 1] - top_B2[:, 0]


@built_in(
    summary="most uncertain: smallest probability of the most likely class",
    paper=_COLEMAN,
    cost="N C",
    kinds=CLASSES,
)
def least_confidence(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest confidence, most uncertain first.

    DeepCore's ranks by logits, which shifting them changes.
    """
    return keep_uncertain(signals, budget, lambda chances_BC: -chances_BC.amax(dim=-1))


def keep_uncertain(
    signals: Signals, budget: int, uncertainty: Callable[[Tensor], Tensor]
) -> Selection:
    """Keep the examples with the largest uncertainty, computed from B x C probabilities."""
    errors_NC, labels_N = signals.errors_NC, signals.labels_N
    scores_N = torch.empty(len(signals), device=errors_NC.device)
    for rows in row_blocks(len(signals), errors_NC.shape[1] * _BYTES_PER_CLASS):
        # Half precision may have rounded errors outside the range of a softmax.
        probabilities_BC = probabilities_of(errors_NC[rows], labels_N[rows]).clamp_(0, 1)
        scores_N[rows] = uncertainty(probabilities_BC).float()
    return keep_largest(scores_N, budget)
