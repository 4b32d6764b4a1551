"""Residuals: how well targets fit that are no classes, where nobody can say that they are wrong.

How many of the labels of single-label data are wrong is estimated by what is known of classes
(noise_rates). Of labels and numbers no more is said than how far a head that never saw an example
is from its target, so that the least likely ones can be looked at first; none is called suspect.

Shapes: N examples, C strata.
"""

from __future__ import annotations

import torch

from lipt.core.diagnosis.label_errors import LabelErrors
from lipt.core.diagnosis.noise_rates import NoiseRate, NoiseRates
from lipt.core.signals.signals import Signals

_NOTHING = NoiseRate(0.0, 0.0, 0.0)


def fit_of_targets(signals: Signals, num_strata: int) -> LabelErrors:
    """The quality of each target, 1 / (1 + |residual|): of 1 where it is told exactly.

    Args:
        signals: with errors of a head that did not learn from the example it judges.
        num_strata: C.
    """
    labels_N = signals.labels_N
    norms_N = torch.linalg.vector_norm(signals.errors_NC, dim=-1, dtype=torch.float64)
    return LabelErrors(
        quality_N=(1 / (1 + norms_N)).float(),
        suggested_N=labels_N,
        suspects_N=torch.zeros_like(labels_N, dtype=torch.bool),
        thresholds_C=torch.full((num_strata,), torch.inf, dtype=torch.float64),
        joint_CC=torch.zeros(num_strata, num_strata, dtype=torch.int64),
        noise=NoiseRates(_NOTHING, (_NOTHING,) * num_strata),
    )
