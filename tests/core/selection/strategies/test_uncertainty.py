from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.strategies import uncertainty
from lipt.core.selection.strategies.uncertainty import (
    confidences,
    entropies,
    entropy,
    least_confidence,
    margin,
    probability_margins,
    score_probabilities,
)
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import of_probabilities, random_predictions, signals_of


def test_rounding_cannot_leave_zero_to_one() -> None:
    # One step of half precision beyond what an error can be; the score sees it in float32.
    errors_NC = torch.tensor([[-1.001, 1.001], [1.001, -1.001]]).half()
    seen: list[Tensor] = []

    def score(probabilities_BC: Tensor) -> Tensor:
        seen.append(probabilities_BC)
        return probabilities_BC[:, 0]

    scores_N = score_probabilities(signals_of(errors_NC=errors_NC, labels=[0, 1]), score)
    assert torch.cat(seen).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert scores_N.tolist() == [0.0, 1.0]
    assert scores_N.dtype == seen[0].dtype == torch.float32


def test_no_more_than_a_block_is_widened_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertainty, "row_blocks", partial(row_blocks, block_bytes=10 * 4 * 24))
    seen: list[int] = []

    def score(probabilities_BC: Tensor) -> Tensor:
        seen.append(len(probabilities_BC))
        return probabilities_BC[:, 0]

    score_probabilities(random_predictions(64, 4), score)
    assert seen == [10] * 6 + [4]


def test_keeps_the_most_spread_probabilities_first() -> None:
    # In bits: 0, 1, 1.5 and log2 3; whatever the label is.
    rows = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]
    given = of_probabilities(rows, [0, 2, 1, 0])
    bits = (entropies(given) / math.log(2)).tolist()
    assert bits == pytest.approx([0.0, 1.0, 1.5, math.log2(3)], abs=1e-6)
    assert entropy(given, 3).indices_K.tolist() == [3, 2, 1]


def test_equals_the_sum_written_out() -> None:
    given = random_predictions(40, 6)
    for row, label, found in zip(
        given.errors_NC.tolist(), given.labels_N.tolist(), entropies(given).tolist(), strict=True
    ):
        row[label] += 1
        assert found == pytest.approx(-sum(p * math.log(p) for p in row), abs=1e-6)


def test_one_class_and_one_example_are_certain() -> None:
    single = signals_of(errors_NC=torch.zeros(3, 1))
    assert entropies(single).tolist() == [0.0] * 3
    assert entropy(single, 2).indices_K.tolist() == [0, 1]
    assert entropy(of_probabilities([[0.5, 0.5]], [1]), 1).indices_K.tolist() == [0]


def test_keeps_the_smallest_margin_first_whatever_the_label() -> None:
    # Margins 0.75, 0.125, 0.25 and 0. The second is wrong: by its label it would be negative.
    rows = [[0.875, 0.125, 0.0], [0.5, 0.375, 0.125], [0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]
    given = of_probabilities(rows, [0, 2, 0, 1])
    assert probability_margins(given).tolist() == [0.75, 0.125, 0.25, 0.0]
    assert margin(given, 3).indices_K.tolist() == [3, 1, 2]


def test_equals_two_sorted_probabilities() -> None:
    given = random_predictions(40, 6)
    for row, label, found in zip(
        given.errors_NC.tolist(),
        given.labels_N.tolist(),
        probability_margins(given).tolist(),
        strict=True,
    ):
        row[label] += 1
        *_, second, first = sorted(row)
        assert found == pytest.approx(first - second, abs=1e-6)


def test_one_class_has_no_second_probability() -> None:
    single = signals_of(errors_NC=torch.zeros(3, 1))
    assert probability_margins(single).tolist() == [1.0] * 3
    assert margin(single, 2).indices_K.tolist() == [0, 1]


def test_two_classes_order_as_the_larger_probability_does() -> None:
    given = of_probabilities([[0.875, 0.125], [0.375, 0.625], [0.25, 0.75]], [0, 0, 1])
    assert probability_margins(given).tolist() == [0.75, 0.25, 0.5]
    assert margin(given, 3).indices_K.tolist() == [1, 2, 0]


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
