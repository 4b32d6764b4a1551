"""Soft labels: leave-one-out probabilities of a ridge head as training targets.

Targets t_i = (1 - alpha) onehot(y_i) + alpha p_i help a model that is trained on few examples, as
in distillation: p_i uses all other examples. `recommended_alpha` compares the head with one fitted
to the chosen examples alone.

Shapes: N examples, K chosen ones, M of the others, B of a block, C classes.
Source: Hinton et al. 2015 (arXiv:1503.02531).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.signals import row_blocks
from lipt.core.proxies.ridge import class_weights, leave_one_out, weighted_accuracy
from lipt.core.signals.signals import Signals, probabilities_of, required

# On 20,000 images of cifar10-jpeg the best alpha is 0.8 for a random fiftieth, 0.5 for a tenth, 0.3
# for 30%; a head of these alone is 18.5, 7.6 and 3.8 points behind: 0.8 (1 - exp(-points / 8)).
_MOST, _POINTS = 0.8, 0.08
# Examples on which the head of the chosen ones is evaluated.
_MAX_SAMPLE = 2_000
_NO_WEIGHT = 1e-9


@dataclass(frozen=True)
class SoftLabels:
    """Probabilities of the classes, float16, and facts for a manifest, as JSON."""

    probabilities_KC: Tensor
    facts: Mapping[str, Any]


def soft_labels(signals: Signals, places_K: Tensor, *, seed: int) -> SoftLabels:
    """Soft labels of the examples at `places_K`, by a proxy's second head or its only one."""
    labels_N, errors_NC, head = signals.labels_N, signals.errors_NC, required(signals.facts, "head")
    confidence_N = signals.confidence_N
    if confidence_N is None:
        confidence_N = torch.ones_like(labels_N, dtype=torch.float64)
    if signals.second_errors_NC is not None:
        errors_NC, head = signals.second_errors_NC, {**head, **head["second"]}
    on_others, alone = _accuracies_on_others(signals, errors_NC, places_K, confidence_N, seed)
    suspected = float((confidence_N[places_K] < 1).double().mean())
    facts = {
        "features": head["features"],
        "tried": head["tried"],
        "accuracy": head["accuracy"],
        "temperature": 1 / head["inverse_temperature"],
        "accuracy_on_others": on_others,
        "accuracy_of_chosen_alone": alone,
        "suspected": suspected,
        "recommended_alpha": recommended_alpha(on_others, alone, suspected),
    }
    probabilities_KC = torch.empty(len(places_K), errors_NC.shape[1], dtype=torch.float16)
    for rows in row_blocks(len(places_K), 8 * errors_NC.shape[1]):
        places_B = places_K[rows]
        probabilities_BC = probabilities_of(errors_NC[places_B], labels_N[places_B])
        probabilities_KC[rows] = probabilities_BC.clamp_(0, 1).half()
    return SoftLabels(probabilities_KC, facts)


def _accuracies_on_others(
    signals: Signals, errors_NC: Tensor, places_K: Tensor, confidence_N: Tensor, seed: int
) -> tuple[float, float]:
    """Accuracies on a sample of the others: of the head, and of one of the chosen alone."""
    labels_N, generator = signals.labels_N, derive_generator(seed, "soft labels")
    others = torch.ones(len(labels_N), dtype=torch.bool)
    others[places_K] = False
    others_M = torch.nonzero(others).flatten()
    if not len(others_M):
        return 1.0, 1.0
    others_M = others_M[torch.randperm(len(others_M), generator=generator)[:_MAX_SAMPLE]]
    rows, num_chosen = torch.cat([places_K, others_M]), len(places_K)
    # The others are scored, and have no weight in the fit.
    teach = confidence_N[rows]
    teach[num_chosen:] = _NO_WEIGHT
    head = leave_one_out(
        signals.features_ND[rows].float(),
        labels_N[rows],
        signals.errors_NC.shape[1],
        generator=generator,
        confidence_N=teach,
    )
    labels_M = labels_N[others_M]
    weights_M = class_weights(labels_M, confidence_N[others_M])
    known_MC = probabilities_of(errors_NC[others_M], labels_M)
    on_others = weighted_accuracy(known_MC, labels_M, weights_M)
    return on_others, weighted_accuracy(head.outputs_NC[num_chosen:], labels_M, weights_M)


def recommended_alpha(accuracy: float, alone: float, suspected: float) -> float:
    """Share of the head's probabilities in targets, by its gain and the doubtful labels' share."""
    alpha = _MOST * -math.expm1(-max(accuracy - alone, 0.0) / _POINTS)
    # The head is right about as often as labels are wrong.
    return alpha + (1 - alpha) * min(suspected, 1.0)
