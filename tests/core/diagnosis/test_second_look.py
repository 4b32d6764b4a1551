"""Second look: who teaches the second head, and what both together say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.diagnosis.label_errors import LabelErrors, find_label_errors
from lipt.core.diagnosis.noise_rates import NoiseRate, NoiseRates
from lipt.core.diagnosis.second_look import trust_after
from lipt.core.signals.signals import Signals


def judged(quality: list[float], *, rate: float, low: float, num_classes: int = 2) -> LabelErrors:
    """What a first look has found, as far as the second one asks."""
    none = torch.zeros(len(quality), dtype=torch.int64)
    noise = NoiseRates(NoiseRate(rate, low, 1.0), ())
    thresholds_C = torch.zeros(num_classes, dtype=torch.float64)
    joint_CC = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    return LabelErrors(torch.tensor(quality), none, none.bool(), thresholds_C, joint_CC, noise)


def test_the_least_trusted_of_each_class_do_not_teach_as_many_as_are_wrong() -> None:
    labels_N = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    # Class 1 is judged worse as a whole: it keeps its teachers all the same.
    found = judged([0.9, 0.2, 0.8, 0.7, 0.1, 0.05, 0.15, 0.12], rate=0.25, low=0.1)
    trust_N = trust_after(found, labels_N)
    assert trust_N is not None
    assert (trust_N < 1).nonzero().flatten().tolist() == [1, 5]
    assert trust_N.min() > 0


def test_half_of_each_class_teaches_however_many_are_wrong() -> None:
    labels_N = torch.tensor([0, 0, 0, 0])
    trust_N = trust_after(judged([0.1, 0.2, 0.3, 0.4], rate=0.9, low=0.8), labels_N)
    assert trust_N is not None
    assert (trust_N == 1).tolist() == [False, False, True, True]


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_there_is_no_second_look_where_it_is_not_sure_that_labels_are_wrong(rate: float) -> None:
    assert trust_after(judged([0.1, 0.9], rate=rate, low=0.01), torch.tensor([0, 1])) is None


def errors(chances_NC: Tensor, labels_N: Tensor) -> Tensor:
    return chances_NC - functional.one_hot(labels_N, chances_NC.shape[1])


def test_both_looks_say_how_good_a_label_is_and_the_second_what_it_should_be() -> None:
    labels_N = torch.tensor([0, 1])
    first_NC, second_NC = (
        torch.tensor([[0.6, 0.4], [0.3, 0.7]]),
        torch.tensor([[0.2, 0.8], [0.1, 0.9]]),
    )
    signals = Signals(errors(first_NC, labels_N), torch.zeros(2, 1), labels_N)
    one = find_label_errors(signals)
    other = find_label_errors(Signals(errors(second_NC, labels_N), torch.zeros(2, 1), labels_N))
    both = find_label_errors(
        Signals(
            signals.errors_NC,
            signals.features_ND,
            labels_N,
            second_errors_NC=errors(second_NC, labels_N),
        )
    )
    assert one.suggested_N.tolist() == [0, 1]
    assert both.suggested_N.tolist() == [1, 1]
    torch.testing.assert_close(both.quality_N, (one.quality_N * other.quality_N).sqrt())
    # The second head has not learned from the labels that would have to be counted.
    assert both.noise == one.noise
