"""Signals with everything a strategy may need, generic enough that nothing ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from lipt.coordinator.signals.compute import errors_of
from lipt.coordinator.signals.dynamics import Dynamics
from lipt.coordinator.signals.signals import Signals

MakeSignals = Callable[..., Signals]

NUM_FEATURES = 6
NUM_LEARNERS = 3
NUM_MOMENTS = 4


@pytest.fixture(scope="session")
def full_signals() -> MakeSignals:
    """`full_signals(labels, num_classes=..., seed=...)`: with all that any strategy needs."""

    def make(labels: Sequence[int], *, num_classes: int | None = None, seed: int = 0) -> Signals:
        classes = max(labels) + 1 if num_classes is None else num_classes
        generator = torch.Generator().manual_seed(seed)
        heads = torch.randn(classes, NUM_FEATURES, generator=generator)
        held = _signals(heads, torch.arange(10 * classes) % classes, generator, None)
        return _signals(heads, torch.tensor(labels), generator, held)

    return make


def _signals(
    heads_CD: torch.Tensor,
    labels_N: torch.Tensor,
    generator: torch.Generator,
    validation: Signals | None,
) -> Signals:
    """Features around a direction per class, errors of a model that half knows them."""
    num_examples = len(labels_N)
    features_ND = heads_CD[labels_N] + torch.randn(num_examples, NUM_FEATURES, generator=generator)
    noise_NC = torch.randn(num_examples, len(heads_CD), generator=generator)
    return Signals(
        errors_NC=errors_of(0.4 * features_ND @ heads_CD.T + noise_NC, labels_N),
        features_ND=features_ND,
        labels_N=labels_N,
        gradient_norms_N=torch.rand(num_examples, generator=generator),
        dynamics=_dynamics(num_examples, generator),
        paired_features_NP=features_ND + torch.randn(features_ND.shape, generator=generator),
        validation=validation,
    )


def _dynamics(num_examples: int, generator: torch.Generator) -> Dynamics:
    margins_NLT = torch.randn(num_examples, NUM_LEARNERS, NUM_MOMENTS, generator=generator)
    # All learners start from the same weights.
    margins_NLT[:, :, 0] = margins_NLT[:, :1, 0]
    return Dynamics(
        probabilities_NLT=margins_NLT.sigmoid(),
        margins_NLT=margins_NLT,
        error_norms_NL=torch.rand(num_examples, NUM_LEARNERS, generator=generator),
        disagreement_N=torch.rand(num_examples, generator=generator),
    )
