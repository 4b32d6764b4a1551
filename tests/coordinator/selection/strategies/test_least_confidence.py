from __future__ import annotations

import pytest
import torch

from lipt.coordinator.selection.registry import find_strategy
from lipt.coordinator.selection.select import select
from lipt.coordinator.selection.strategies.least_confidence import confidences, least_confidence
from lipt.coordinator.signals.compute import errors_of
from lipt.coordinator.signals.signals import Signals


def of_logits(logits_NC: torch.Tensor, labels_N: torch.Tensor) -> Signals:
    return Signals(errors_of(logits_NC, labels_N), torch.ones(len(labels_N), 1), labels_N)


def random_signals(num_examples: int, num_classes: int) -> Signals:
    generator = torch.Generator().manual_seed(1)
    logits_NC = 3 * torch.randn(num_examples, num_classes, generator=generator)
    return of_logits(logits_NC, torch.arange(num_examples) % num_classes)


def test_keeps_the_smallest_largest_probability_first() -> None:
    probabilities_NC = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.375, 0.125], [0.375, 0.625, 0.0]])
    given = of_logits(probabilities_NC.log(), torch.tensor([1, 0, 0]))
    assert confidences(given).tolist() == pytest.approx([0.75, 0.5, 0.625])
    chosen = least_confidence(given, 2)
    assert chosen.indices_K.tolist() == [1, 2]
    assert chosen.weights_K.tolist() == [1.0, 1.0]


def test_a_shift_of_the_logits_is_not_confidence() -> None:
    # By its largest logit the second looks most confident; its probabilities are (.5, .5).
    logits_NC = torch.tensor([[2.0, 0.0], [100.0, 100.0], [-7.0, -8.0]])
    given = of_logits(logits_NC, torch.tensor([0, 0, 0]))
    assert least_confidence(given, 3).indices_K.tolist() == [1, 2, 0]


@pytest.mark.parametrize("balanced", [False, True])
def test_what_is_kept_is_less_certain_than_what_is_not(balanced: bool) -> None:
    given = random_signals(300, 10)
    strategy = find_strategy("least_confidence")
    chosen = select(strategy, given, 30, balanced=balanced, seed=0, options={}).indices_K
    scores_N = confidences(given)
    kept = torch.zeros(300, dtype=torch.bool)
    kept[chosen] = True
    for label in range(10) if balanced else [None]:
        of_group = given.labels_N == label if balanced else torch.ones(300, dtype=torch.bool)
        assert scores_N[kept & of_group].max() <= scores_N[~kept & of_group].min()


def test_equals_the_largest_softmax() -> None:
    generator = torch.Generator().manual_seed(4)
    logits_NC = torch.randn(50, 9, generator=generator)
    found_N = confidences(of_logits(logits_NC, torch.arange(50) % 9))
    torch.testing.assert_close(found_N, logits_NC.softmax(-1).amax(-1), rtol=0, atol=1e-6)


def test_one_class_is_certain() -> None:
    single = of_logits(torch.tensor([[3.0], [-2.0]]), torch.tensor([0, 0]))
    assert confidences(single).tolist() == [1.0, 1.0]
    assert least_confidence(single, 1).indices_K.tolist() == [0]
