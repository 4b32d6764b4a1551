from __future__ import annotations

import pytest
import torch

from lipt.core.selection.strategies.least_confidence import confidences, least_confidence
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import signals_of


def of_logits(logits_NC: torch.Tensor, labels_N: torch.Tensor) -> Signals:
    return signals_of(errors_NC=errors_of(logits_NC, labels_N), labels=labels_N)


def test_keeps_the_smallest_largest_probability_first() -> None:
    probabilities_NC = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.375, 0.125], [0.375, 0.625, 0.0]])
    given = of_logits(probabilities_NC.log(), torch.tensor([1, 0, 0]))
    assert confidences(given).tolist() == pytest.approx([0.75, 0.5, 0.625])
    assert least_confidence(given, 2).indices_K.tolist() == [1, 2]


def test_a_shift_of_the_logits_is_not_confidence() -> None:
    # By its largest logit the second looks most confident; its probabilities are (.5, .5).
    logits_NC = torch.tensor([[2.0, 0.0], [100.0, 100.0], [-7.0, -8.0]])
    given = of_logits(logits_NC, torch.tensor([0, 0, 0]))
    assert least_confidence(given, 3).indices_K.tolist() == [1, 2, 0]


def test_equals_the_largest_softmax() -> None:
    generator = torch.Generator().manual_seed(4)
    logits_NC = torch.randn(50, 9, generator=generator)
    found_N = confidences(of_logits(logits_NC, torch.arange(50) % 9))
    torch.testing.assert_close(found_N, logits_NC.softmax(-1).amax(-1), rtol=0, atol=1e-6)


def test_one_class_is_certain() -> None:
    single = of_logits(torch.tensor([[3.0], [-2.0]]), torch.tensor([0, 0]))
    assert confidences(single).tolist() == [1.0, 1.0]
    assert least_confidence(single, 1).indices_K.tolist() == [0]
