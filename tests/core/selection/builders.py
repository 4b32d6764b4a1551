"""Signals for tests: of given values, drawn at random, or with all that any strategy needs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.selection.strategies.glister import ValidationLayer
from lipt.core.selection.vectors import Space, Vectors, vectors_of
from lipt.core.signals.compute import errors_of
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import Signals
from lipt.core.signals.targeted import TargetSignals
from lipt.core.signals.views import Features

NUM_FEATURES = 6
NUM_LEARNERS = 3
NUM_MOMENTS = 4


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


def of_probabilities(
    probabilities: Sequence[Sequence[float]] | Tensor,
    labels: Sequence[int] | Tensor | None = None,
    features_ND: Tensor | None = None,
) -> Signals:
    """Errors of a model that says so; labels 0 where they are not given."""
    errors_NC = (
        torch.tensor(probabilities) if isinstance(probabilities, Sequence) else probabilities
    )
    labels_N = torch.as_tensor([0] * len(errors_NC) if labels is None else labels)
    errors_NC = errors_NC.clone()
    errors_NC[torch.arange(len(errors_NC)), labels_N] -= 1
    return signals_of(features_ND, errors_NC, labels_N)


def of_right(*probabilities: float, features_ND: Tensor | None = None) -> Signals:
    """Two classes, all labels 0: p of the right class gives e = (p - 1, 1 - p)."""
    return of_probabilities([[p, 1 - p] for p in probabilities], features_ND=features_ND)


def random_signals(
    num_examples: int,
    num_classes: int = 3,
    num_features: int = NUM_FEATURES,
    *,
    seed: int = 0,
    has_bias: bool = True,
) -> Signals:
    """Normal errors and features: nothing ties. All labels are 0."""
    generator = torch.Generator().manual_seed(seed)
    errors_NC = torch.randn(num_examples, num_classes, generator=generator)
    features_ND = torch.randn(num_examples, num_features, generator=generator)
    return signals_of(features_ND, errors_NC, has_bias=has_bias)


def random_predictions(
    num_examples: int,
    num_classes: int = 4,
    num_features: int = NUM_FEATURES,
    *,
    seed: int = 0,
    has_bias: bool = True,
) -> Signals:
    """Errors of a model that is mostly right, features that are not negative, labels in turn."""
    generator = torch.Generator().manual_seed(seed)
    labels_N = torch.arange(num_examples) % num_classes
    logits_NC = torch.randn(num_examples, num_classes, generator=generator)
    logits_NC[torch.arange(num_examples), labels_N] += 1
    features_ND = torch.randn(num_examples, num_features, generator=generator).relu()
    return Signals(errors_of(logits_NC, labels_N), features_ND, labels_N, has_bias=has_bias)


def full_signals(
    labels: Sequence[int], *, num_classes: int | None = None, seed: int = 0
) -> Signals:
    """With all that any strategy needs, generic enough that nothing ties."""
    classes = max(labels) + 1 if num_classes is None else num_classes
    generator = torch.Generator().manual_seed(seed)
    heads_CD = torch.randn(classes, NUM_FEATURES, generator=generator)

    def part(labels_N: Tensor) -> Signals:
        """Features around a direction per class, errors of a model that half knows them."""
        size = len(labels_N)
        features_ND = heads_CD[labels_N] + torch.randn(size, NUM_FEATURES, generator=generator)
        noise_NC = torch.randn(size, classes, generator=generator)
        return Signals(
            errors_NC=errors_of(0.4 * features_ND @ heads_CD.T + noise_NC, labels_N),
            features_ND=features_ND,
            labels_N=labels_N,
            gradient_norms_N=torch.rand(size, generator=generator),
            dynamics=random_dynamics(size, generator=generator),
            paired_features_NP=features_ND + torch.randn(features_ND.shape, generator=generator),
            duplicate_group_N=torch.arange(size),
            targeted=random_targeted(size, generator=generator),
        )

    held = part(torch.arange(10 * classes) % classes)
    return replace(part(torch.tensor(labels)), validation=held)


def random_targeted(num_examples: int, *, generator: torch.Generator) -> TargetSignals:
    """Of a target with two parts and five examples, none of which is in the data."""
    losses_N = 1 + torch.rand(num_examples, generator=generator)
    return TargetSignals(
        losses_N=losses_N,
        unprompted_N=losses_N + torch.rand(num_examples, generator=generator),
        after_NP=torch.rand(num_examples, 2, generator=generator),
        in_target_N=torch.zeros(num_examples, dtype=torch.bool),
        features_ND=torch.randn(num_examples, NUM_FEATURES, generator=generator),
        words_NW=torch.randint(50, (num_examples, 8), generator=generator, dtype=torch.int32),
        target_features_MD=torch.randn(5, NUM_FEATURES, generator=generator),
        target_words_MW=torch.randint(50, (5, 8), generator=generator, dtype=torch.int32),
    )


def random_dynamics(
    num_examples: int,
    num_learners: int = NUM_LEARNERS,
    num_moments: int = NUM_MOMENTS,
    *,
    generator: torch.Generator,
) -> Dynamics:
    """Margins of learners that all start from the same weights; some examples are in a shard."""
    shape = (num_examples, num_learners, num_moments)
    margins_NLT = torch.randn(shape, generator=generator)
    margins_NLT[:, :, 0] = margins_NLT[:, :1, 0]
    return Dynamics(
        probabilities_NLT=margins_NLT.sigmoid(),
        margins_NLT=margins_NLT,
        error_norms_NL=torch.rand(num_examples, num_learners, generator=generator),
        disagreement_N=torch.rand(num_examples, generator=generator),
        own_learner_N=torch.randint(
            -1, num_learners, (num_examples,), generator=generator, dtype=torch.int16
        ),
    )


def half(signals: Signals) -> Signals:
    """The same with errors and features in half precision, those of validation, too."""
    held, pairs_NP = signals.validation, signals.paired_features_NP
    return replace(
        signals,
        errors_NC=signals.errors_NC.half(),
        features_ND=signals.features_ND.half(),
        paired_features_NP=None if pairs_NP is None else pairs_NP.half(),
        validation=None if held is None else half(held),
    )


def in_space(signals: Signals, space: Space) -> Vectors:
    return vectors_of(signals if space == "gradients" else Features.of(signals))


def written_out(signals: Signals, space: Space = "gradients") -> Tensor:
    """One row per example, float64: h, or the outer product of e and [h, 1]."""
    features_ND = signals.features_ND.double()
    if space == "features":
        return features_ND
    if signals.has_bias:
        features_ND = torch.cat([features_ND, features_ND.new_ones(len(signals), 1)], dim=1)
    return torch.einsum("nc,nd->ncd", signals.errors_NC.double(), features_ND).flatten(1)


def validation_loss(layer: ValidationLayer) -> float:
    return float(functional.cross_entropy(layer.logits_VC, layer.labels_V))


def random_subsets(num_examples: int, budget: int, count: int = 20) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randperm(num_examples, generator=generator)[:budget]


def at_angles(*degrees: float) -> Tensor:
    angles_N = torch.tensor(degrees).deg2rad()
    return torch.stack([angles_N.cos(), angles_N.sin()], dim=1)


def plain_greedy(similarity_NT: Tensor, budget: int) -> list[int]:
    """Facility location with every gain of every example before every pick; ties by rounding."""
    similarity_NT = similarity_NT.double()
    best_T, chosen = torch.zeros_like(similarity_NT[0]), []
    for _ in range(budget):
        gains_N = (similarity_NT - best_T).clamp(min=0).sum(dim=1).round(decimals=8)
        gains_N[chosen] = -1
        gains = gains_N.tolist()
        chosen.append(gains.index(max(gains)))
        best_T = torch.maximum(best_T, similarity_NT[chosen[-1]])
    return chosen
