import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.signals.signals import Signals
from lipt.core.stages.choice import recommended_alpha, soft_labels
from tests.core.selection.builders import of_probabilities

SECOND = {"accuracy": 0.95, "inverse_temperature": 8.0}
HEAD = {"features": ["patches"], "tried": [], "accuracy": 0.7, "inverse_temperature": 4.0}


def signals_of(chances_NC: Tensor, labels_N: Tensor, features_ND: Tensor, **others: Any) -> Signals:
    signals = of_probabilities(chances_NC, labels_N, features_ND)
    return replace(signals, facts=HEAD | {"second": SECOND}, **others)


def drawn(num_examples: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labels of two classes, and features that tell them apart, each by half a deviation."""
    generator = torch.Generator().manual_seed(seed)
    labels_N = torch.arange(num_examples) % 2
    noise_ND = torch.randn(num_examples, 16, generator=generator)
    return labels_N, noise_ND + 0.5 * (2.0 * labels_N[:, None] - 1)


def test_soft_labels_are_probabilities_of_the_chosen_examples() -> None:
    labels_N, features_ND = drawn(40)
    chances_NC = torch.rand(40, 2, generator=torch.Generator().manual_seed(1))
    chances_NC /= chances_NC.sum(dim=1, keepdim=True)
    signals = signals_of(chances_NC, labels_N, features_ND)
    places_K = torch.tensor([3, 4, 39])
    found = soft_labels(signals, places_K, seed=0)
    assert found.probabilities_KC.dtype == torch.float16
    torch.testing.assert_close(
        found.probabilities_KC.float(), chances_NC[places_K], rtol=0, atol=0.5**11
    )
    assert found.facts["accuracy"] == 0.7
    assert found.facts["temperature"] == 0.25
    assert found.facts["suspected"] == 0


def test_rounded_soft_labels_stay_in_0_to_1() -> None:
    labels_N, features_ND = drawn(6)
    chances_NC = functional.one_hot(labels_N, 2) * (1 + 1e-3) - 5e-4
    found = soft_labels(signals_of(chances_NC, labels_N, features_ND), labels_N[:2], seed=0)
    assert float(found.probabilities_KC.min()) == 0
    assert float(found.probabilities_KC.max()) == 1


def test_wrong_labels_get_soft_labels_of_the_second_head() -> None:
    true_N, features_ND = drawn(400)
    labels_N = true_N.clone()
    labels_N[:120] = 1 - labels_N[:120]
    first_NC = functional.one_hot(true_N, 2) * 0.9 + 0.05
    second_NC = functional.one_hot(true_N, 2) * 0.98 + 0.01
    confidence_N = torch.where(labels_N == true_N, 1.0, 1e-6).double()
    second = {"second_errors_NC": second_NC - functional.one_hot(labels_N, 2)}
    signals = signals_of(first_NC, labels_N, features_ND, confidence_N=confidence_N, **second)
    places_K = torch.cat([torch.arange(60, 120), torch.arange(340, 400)])
    found = soft_labels(signals, places_K, seed=0)
    torch.testing.assert_close(
        found.probabilities_KC.float(), second_NC[places_K], rtol=0, atol=1e-3
    )
    assert (found.facts["accuracy"], found.facts["temperature"]) == (0.95, 0.125)
    # 60 of the chosen 120 have wrong labels.
    assert found.facts["suspected"] == 0.5
    assert found.facts["recommended_alpha"] >= found.facts["suspected"]


def test_accuracy_of_the_chosen_is_measured_on_the_others() -> None:
    labels_N, features_ND = drawn(3000)
    signals = signals_of(torch.full((3000, 2), 0.5), labels_N, features_ND)
    few, many = (
        soft_labels(signals, torch.arange(count), seed=0).facts["accuracy_of_chosen_alone"]
        for count in (20, 1000)
    )
    # The best there is are two deviations in sixteen directions of half a one: 97.7%.
    assert few < many < 0.98
    assert many > 0.96
    everything = soft_labels(signals, torch.arange(3000), seed=0)
    assert everything.facts["recommended_alpha"] == 0


def test_the_head_and_the_chosen_are_compared_on_the_same_examples() -> None:
    # The chosen are the easy half. On the others the head is no better than they alone.
    labels_N, features_ND = drawn(2000)
    features_ND[1000:] = torch.randn(1000, 16, generator=torch.Generator().manual_seed(3))
    chances_NC = functional.one_hot(labels_N, 2).float()
    chances_NC[1000:] = 1 - functional.one_hot(torch.arange(1000) // 2 % 2, 2)
    signals = signals_of(chances_NC, labels_N, features_ND)
    facts = soft_labels(signals, torch.arange(1000), seed=0).facts
    assert facts["accuracy"] == 0.7
    assert facts["accuracy_on_others"] == 0.5
    assert facts["accuracy_of_chosen_alone"] == pytest.approx(0.5, abs=0.05)
    assert facts["recommended_alpha"] < 0.4


def test_a_head_on_few_features_does_not_teach_a_model_with_many_examples() -> None:
    labels_N, features_ND = drawn(3000)
    # The chosen alone learn nothing. The head of all is right on two thirds.
    features_ND = torch.randn(features_ND.shape, generator=torch.Generator().manual_seed(1))
    chances_NC = functional.one_hot((labels_N + (torch.arange(3000) % 3 == 0)) % 2, 2).float()
    signals = signals_of(chances_NC * 0.2 + 0.4, labels_N, features_ND)
    few, many = (soft_labels(signals, torch.arange(count), seed=0).facts for count in (10, 1000))
    assert (few["trust"], many["trust"]) == (1, 0)
    assert few["recommended_alpha"] > 0 == many["recommended_alpha"]


@pytest.mark.parametrize(
    ("accuracy", "alone", "suspected", "trust", "expected"),
    [
        (0.66, 0.66, 0.0, 1.0, 0.0),
        (0.50, 0.66, 0.0, 1.0, 0.0),
        (0.66, 0.66 - 0.08 * math.log(2), 0.0, 1.0, 0.4),
        (0.66, 0.66 - 0.08 * math.log(4), 0.0, 1.0, 0.6),
        (0.66, 0.66 - 0.08 * math.log(2), 0.5, 1.0, 0.7),
        (0.66, 0.66, 0.3, 1.0, 0.3),
        (0.66, 0.66, 1.0, 1.0, 1.0),
        (0.66, 0.66 - 0.08 * math.log(2), 0.5, 0.5, 0.35),
    ],
)
def test_alpha_grows_with_the_head_s_accuracy_and_wrong_labels(
    accuracy: float, alone: float, suspected: float, trust: float, expected: float
) -> None:
    assert recommended_alpha(accuracy, alone, suspected, trust) == pytest.approx(expected, abs=1e-9)
