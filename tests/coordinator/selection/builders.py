"""Signals for tests: of given factors, drawn at random, or of learners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipt.coordinator.selection.gradients.vectors import SpaceName
from lipt.coordinator.signals.signals import Signals


def signals_of(
    features_ND: Tensor | None = None,
    errors_NC: Tensor | None = None,
    labels: Sequence[int] | Tensor | None = None,
    **others: Any,
) -> Signals:
    """What is given; features are ones, errors zeros and labels 0 where they are not."""
    given = next(values for values in (features_ND, errors_NC, labels) if values is not None)
    size = len(given)
    return Signals(
        errors_NC=torch.zeros(size, 2) if errors_NC is None else errors_NC,
        features_ND=torch.ones(size, 1) if features_ND is None else features_ND,
        labels_N=torch.as_tensor([0] * size if labels is None else labels, dtype=torch.int64),
        **others,
    )


def random_signals(
    num_examples: int,
    num_classes: int = 3,
    num_features: int = 6,
    *,
    seed: int = 0,
    has_bias: bool = True,
) -> Signals:
    """Normal errors and features: nothing ties. All labels are 0."""
    generator = torch.Generator().manual_seed(seed)
    errors_NC = torch.randn(num_examples, num_classes, generator=generator)
    features_ND = torch.randn(num_examples, num_features, generator=generator)
    return signals_of(features_ND, errors_NC, has_bias=has_bias)


def written_out(signals: Signals, space: SpaceName = "gradients") -> Tensor:
    """One row per example, float64: h, or the outer product of e and [h, 1]."""
    features_ND = signals.features_ND.double()
    if space == "features":
        return features_ND
    if signals.has_bias:
        features_ND = torch.cat([features_ND, features_ND.new_ones(len(signals), 1)], dim=1)
    return torch.einsum("nc,nd->ncd", signals.errors_NC.double(), features_ND).flatten(1)
