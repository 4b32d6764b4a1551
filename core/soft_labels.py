"""Soft labels: what a ridge head that never saw an example takes it for, as training targets.

A head's leave-one-out chances p_i carry what all other examples say of example i. A model that is
trained on a few examples gains by targets between the label and these chances,

    t_i = (1 - alpha) onehot(y_i) + alpha p_i,

as a student does of its teacher (Hinton et al. 2015, arXiv:1503.02531), for a teacher that
costs one pass over the data and a matrix.

How much is right depends on what the other examples add: `recommended_alpha` compares the head
with one that was fitted to the chosen examples alone.

Shapes: N examples, K chosen ones, B of a block, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.signals.blocks import row_blocks
from lipt.core.diagnosis.label_errors import find_label_errors, trust_after
from lipt.core.proxies.ridge import leave_one_out
from lipt.core.signals.signals import Signals, probabilities_of


@dataclass(frozen=True)
class SoftLabels:
    """Chances of each class, and what a manifest says of them.

    chances_KC: float16, in [0, 1].
    facts: accuracy and temperature of the head, and the recommended alpha, as JSON.
    """

    chances_KC: Tensor
    facts: Mapping[str, Any]


def soft_labels(
    signals: Signals, head: Mapping[str, Any], places_K: Tensor, *, seed: int
) -> SoftLabels:
    """The soft labels of chosen examples.

    They are those of the second head, taught by trusted labels, where there is one.

    Args:
        signals: a ridge head's, of all N examples.
        head: facts of that head: its features, accuracy and sharpness.
        places_K: int64, which of them.
        seed: draws the sample that the penalty of the head of the chosen is chosen by.
    """
    labels_N, errors_NC, trust_N = signals.labels_N, signals.errors_NC, None
    if signals.second_errors_NC is not None:
        errors_NC, head = signals.second_errors_NC, {**head, **head["second"]}
        first = replace(signals, second_errors_NC=None)
        trust_N = trust_after(find_label_errors(first), labels_N)
    trust_K = None if trust_N is None else trust_N[places_K]
    alone = leave_one_out(
        signals.features_ND[places_K].float(),
        labels_N[places_K],
        errors_NC.shape[1],
        generator=derive_generator(seed, "soft labels"),
        trust_N=trust_K,
    )
    distrusted = 0.0 if trust_K is None else float((trust_K < 1).double().mean())
    facts = {
        "features": head["features"],
        "accuracy": head["accuracy"],
        "temperature": 1 / head["sharpness"],
        "accuracy_of_chosen_alone": alone.accuracy,
        "distrusted": distrusted,
        "recommended_alpha": recommended_alpha(head["accuracy"], alone.accuracy, distrusted),
    }
    return SoftLabels(_chances(errors_NC, labels_N, places_K), facts)


def _chances(errors_NC: Tensor, labels_N: Tensor, places_K: Tensor) -> Tensor:
    chances_KC = torch.empty(len(places_K), errors_NC.shape[1], dtype=torch.float16)
    for rows in row_blocks(len(places_K), 8 * errors_NC.shape[1]):
        places_B = places_K[rows]
        chances_BC = probabilities_of(errors_NC[places_B], labels_N[places_B])
        chances_KC[rows] = chances_BC.clamp_(0, 1).half()
    return chances_KC


def recommended_alpha(accuracy: float, alone: float, distrusted: float) -> float:
    """How much of a target should be the head's chances, in [0, 1].

    Args:
        accuracy: the head's, leave-one-out.
        alone: that of a head of the chosen examples.
        distrusted: the share of the chosen examples whose labels look wrong.
    """
    raise NotImplementedError
