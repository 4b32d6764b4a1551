from __future__ import annotations

import pytest
import torch

from lipt.coordinator.selection.strategies.probabilities import (
    probabilities_of,
    score_probabilities,
)
from lipt.coordinator.signals.compute import errors_of
from lipt.coordinator.signals.signals import Signals


def random_signals(num_examples: int, num_classes: int) -> Signals:
    generator = torch.Generator().manual_seed(3)
    labels_N = torch.randint(num_classes, (num_examples,), generator=generator)
    logits_NC = 3 * torch.randn(num_examples, num_classes, generator=generator)
    return Signals(errors_of(logits_NC, labels_N), torch.zeros(num_examples, 1), labels_N)


def test_probabilities_are_errors_plus_one_at_the_label() -> None:
    errors_NC = torch.tensor([[-0.75, 0.5, 0.25], [0.5, 0.25, -0.75]])
    probabilities_NC = probabilities_of(errors_NC, torch.tensor([0, 2]))
    assert probabilities_NC.tolist() == [[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]
    # What was given is as it was.
    assert errors_NC[0, 0] == -0.75


def test_probabilities_equal_the_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    logits_NC = 5 * torch.randn(50, 7, generator=generator)
    labels_N = torch.arange(50) % 7
    probabilities_NC = probabilities_of(errors_of(logits_NC, labels_N), labels_N)
    expected_NC = logits_NC.double().softmax(dim=-1).float()
    torch.testing.assert_close(probabilities_NC, expected_NC, rtol=0, atol=1.2e-7)


def test_rounding_cannot_leave_zero_to_one() -> None:
    # One step of half precision beyond what an error can be.
    errors_NC = torch.tensor([[-1.001, 1.001]]).half()
    assert probabilities_of(errors_NC, torch.tensor([0])).tolist() == [[0.0, 1.0]]
    assert probabilities_of(-errors_NC, torch.tensor([1])).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("half", [False, True])
def test_scores_do_not_depend_on_the_blocks(half: bool) -> None:
    signals = random_signals(100, 5)
    if half:
        signals = Signals(signals.errors_NC.half(), signals.features_ND.half(), signals.labels_N)
    whole = score_probabilities(signals, lambda rows_BC: rows_BC.square().sum(dim=-1))
    for num_rows in (1, 7, 64, 99):
        parts = score_probabilities(
            signals,
            lambda rows_BC: rows_BC.square().sum(dim=-1),
            block_bytes=num_rows * 5 * 24,
        )
        assert torch.equal(parts, whole)
    assert whole.dtype == torch.float32


def test_half_precision_is_read_block_by_block() -> None:
    signals = random_signals(64, 4)
    half = Signals(signals.errors_NC.half(), signals.features_ND, signals.labels_N)
    seen = []

    def score(probabilities_BC: torch.Tensor) -> torch.Tensor:
        assert probabilities_BC.dtype == torch.float32
        seen.append(len(probabilities_BC))
        return probabilities_BC[:, 0]

    score_probabilities(half, score, block_bytes=10 * 4 * 24)
    assert seen == [10] * 6 + [4]
