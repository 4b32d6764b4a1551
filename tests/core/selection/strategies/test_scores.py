"""Scores of one model on vectors whose norms and probabilities are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.strategies.scores import (
    el2n,
    entropies,
    entropy,
    grand,
    keep_uncertain,
    last_layer_norms,
    least_confidence,
    margin,
    negative_margins,
)
from lipt.core.selection.strategy import Need
from lipt.core.signals.compute import errors_of
from tests.core.selection.builders import (
    of_probabilities,
    of_right,
    signals_of,
)


def test_el2n_keeps_worst_examples_first() -> None:
    # Error norm is sqrt(2) * (1 - p): the order is p ascending.
    assert el2n(of_right(0.9, 0.2, 0.5), budget=2).indices_K.tolist() == [1, 2]
    # |(-0.65, 0.325, 0.325)| = 0.80 is less than |(-0.6, 0.6, 0)| = 0.85; its sum is larger.
    signals = of_probabilities([[0.35, 0.325, 0.325], [0.4, 0.6, 0.0]])
    assert el2n(signals, budget=1).indices_K.tolist() == [1]


def test_grand_multiplies_error_and_feature() -> None:
    # |e| = sqrt(2) (1 - p) for p = 0.9, 0.2, 0.5; sqrt(|h|^2 + 1) = 13, 1, 2.
    features = torch.tensor([[168.0], [0.0], [3.0]]).sqrt()
    given = of_right(0.9, 0.2, 0.5, features_ND=features)
    expected = [2**0.5 * value for value in (1.3, 0.8, 1.0)]
    assert last_layer_norms(given).tolist() == pytest.approx(expected, rel=1e-5)
    assert grand(given, budget=2).indices_K.tolist() == [0, 2]
    without = replace(of_right(0.5, features_ND=torch.tensor([[3.0, 4.0]])), has_bias=False)
    assert last_layer_norms(without).tolist() == pytest.approx([0.5 * 2**0.5 * 5])


def test_grand_by_all_parameters_ranks_their_norms() -> None:
    given = replace(of_right(0.1, 0.2, 0.3), gradient_norms_N=torch.tensor([1.0, 3.0, 2.0]))
    assert grand(given, budget=2, parameters="all").indices_K.tolist() == [1, 2]
    assert find_strategy("grand").needs_for({"parameters": "all"}) == {Need.GRADIENT_NORMS}
    with pytest.raises(SignalsError):
        grand(of_right(0.1), budget=1, parameters="all")


def test_rounding_cannot_leave_zero_to_one() -> None:
    # One step of half precision beyond what an error can be; the score sees it in float32.
    errors_NC = torch.tensor([[-1.001, 1.001], [1.001, -1.001]]).half()
    seen: list[Tensor] = []

    def score(probabilities_BC: Tensor) -> Tensor:
        seen.append(probabilities_BC)
        return probabilities_BC[:, 0]

    chosen = keep_uncertain(signals_of(errors_NC=errors_NC, labels=[0, 1]), 1, score)
    assert torch.cat(seen).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert seen[0].dtype == torch.float32
    assert chosen.indices_K.tolist() == [1]


def test_the_most_uncertain_come_first() -> None:
    # In bits: 0, 1, 1.5 and log2 3; whatever the label is.
    rows = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]
    bits = (entropies(torch.tensor(rows)) / math.log(2)).tolist()
    assert bits == pytest.approx([0.0, 1.0, 1.5, math.log2(3)], abs=1e-6)
    assert entropy(of_probabilities(rows, [0, 2, 1, 0]), 3).indices_K.tolist() == [3, 2, 1]
    # The second is wrong: by its label its margin would be negative.
    rows = [[0.875, 0.125, 0.0], [0.5, 0.375, 0.125], [0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]
    given = of_probabilities(rows, [0, 2, 0, 1])
    assert negative_margins(torch.tensor(rows)).tolist() == [-0.75, -0.125, -0.25, 0.0]
    assert margin(given, 3).indices_K.tolist() == [3, 1, 2]
    assert least_confidence(given, 2).indices_K.tolist() == [1, 2]


def test_one_class_is_certain() -> None:
    single = signals_of(errors_NC=torch.zeros(3, 1))
    for strategy in (entropy, margin, least_confidence):
        assert strategy(single, 2).indices_K.tolist() == [0, 1]


def test_a_shift_of_the_logits_is_not_confidence() -> None:
    # By its largest logit the second looks most confident; its probabilities are (.5, .5).
    logits_NC = torch.tensor([[2.0, 0.0], [100.0, 100.0], [-7.0, -8.0]])
    given = signals_of(errors_NC=errors_of(logits_NC, torch.tensor([0, 0, 0])))
    assert least_confidence(given, 3).indices_K.tolist() == [1, 2, 0]
