from dataclasses import replace

import pytest
import torch

from lipt.core.mixture.readiness import Readiness, constant_outputs, readiness_of
from lipt.data.targets.values import MultiLabel, Regression, SingleLabel
from tests.core.mixture.shifts import shifts


def test_halves_that_agree_and_know_something_are_ready() -> None:
    targets = (3.0, 2.0, 4.0, 3.0, 2.5, 3.5)
    half = shifts(0.0, 4.0, targets=targets)
    knowing = replace(half, initial={**half.initial, "0.bias": torch.tensor([0.5])})
    found, crossed_N = readiness_of(10, (knowing, knowing), torch.zeros(8, 1), seed=0)
    # Equal shares end at 0.5 + 2, off by 0.5 from the mean of the target.
    assert crossed_N.mean().item() == pytest.approx(0.125, abs=0.01)
    assert found.agreement == pytest.approx(1.0)
    # Merged, the mean is met, and half the variance is left: 2.5 / 12 of 9 / 2 + 2.5 / 12.
    assert found.knowledge == pytest.approx(4.5 / (4.5 + 2.5 / 12), abs=0.01)
    assert found.is_ready


def test_halves_with_opposite_weights_are_not_ready() -> None:
    targets = (3.0, 2.0, 4.0, 3.0, 2.5, 3.5)
    halves = shifts(0.0, 4.0, targets=targets), shifts(4.0, 0.0, targets=targets)
    found, _ = readiness_of(10, halves, torch.zeros(8, 1), seed=0)
    assert found.agreement < 0.5
    assert not found.is_ready


def test_a_theta_star_that_knows_nothing_is_not_ready_even_if_halves_agree() -> None:
    assert not Readiness(steps=100, knowledge=0.01, agreement=1.0).is_ready
    assert not Readiness(steps=100, knowledge=0.5, agreement=0.2).is_ready
    assert Readiness(steps=100, knowledge=0.5, agreement=0.9).is_ready


def test_constant_answers_are_the_pools_frequencies_and_means() -> None:
    labels_N = torch.tensor([0] * 8 + [1] * 0)
    classes_NT = constant_outputs(SingleLabel(2), labels_N, 3)
    # One more of each class: 9 and 1 of 10.
    assert torch.allclose(classes_NT.exp()[0], torch.tensor([0.9, 0.1]))
    labels_NT = constant_outputs(MultiLabel(2), torch.tensor([[1, 0], [0, 0]]), 1)
    assert torch.allclose(labels_NT.sigmoid(), torch.tensor([[0.5, 0.0]]), atol=1e-4)
    numbers_NT = constant_outputs(Regression((1.0,), (2.0,)), torch.tensor([[3.0], [7.0]]), 2)
    assert numbers_NT.tolist() == [[2.0], [2.0]]
