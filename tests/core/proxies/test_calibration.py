"""Calibration: the sharpness under which the given labels are likeliest."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lipt.core.proxies.calibration import chances, fit_sharpness


def made_up(num_wrong: int) -> tuple[Tensor, Tensor]:
    """Outputs that hint at 100 labels of three classes, the first `num_wrong` of them changed."""
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.randint(3, (100,), generator=generator)
    outputs_NC = torch.randn(100, 3, generator=generator) * 0.2
    outputs_NC[torch.arange(100), labels_N] += 0.5
    labels_N[:num_wrong] = (labels_N[:num_wrong] + 1) % 3
    return outputs_NC, labels_N


@pytest.mark.parametrize("num_wrong", [5, 20, 40])
def test_no_sharpness_of_a_fine_grid_makes_the_labels_likelier(num_wrong: int) -> None:
    outputs_NC, labels_N = made_up(num_wrong)
    weights_N = torch.linspace(0.5, 1.5, 100, dtype=torch.float64)

    def likelihood(sharpness: float) -> float:
        logs_NC = (outputs_NC.double() * sharpness).log_softmax(dim=-1)
        return float(weights_N @ logs_NC.gather(1, labels_N[:, None]).squeeze(1))

    grid = [10.0 ** (power / 500) for power in range(-1500, 1500)]
    best = max(grid, key=likelihood)
    found = fit_sharpness(outputs_NC, labels_N, weights_N)
    assert math.log10(found) == pytest.approx(math.log10(best), abs=1 / 500)
    assert likelihood(found) >= likelihood(best) - 1e-9


def test_two_outputs_have_the_odds_of_their_labels() -> None:
    # The outputs say 1 of the first class; 3 of 4 labels are of it: e^sharpness is 3.
    outputs_NC = torch.tensor([[1.0, 0.0]] * 4)
    labels_N = torch.tensor([0, 0, 0, 1])
    found = fit_sharpness(outputs_NC, labels_N, torch.ones(4, dtype=torch.float64))
    assert found == pytest.approx(math.log(3))
    assert chances(outputs_NC, found)[0].tolist() == pytest.approx([0.75, 0.25])


def test_outputs_without_a_fault_are_as_sharp_as_can_be() -> None:
    outputs_NC = torch.eye(3)
    found = fit_sharpness(outputs_NC, torch.arange(3), torch.ones(3, dtype=torch.float64))
    assert found == pytest.approx(1e4)
    assert chances(outputs_NC, found).tolist() == torch.eye(3).tolist()


def test_outputs_that_say_nothing_are_even_chances() -> None:
    outputs_NC, labels_N = torch.zeros(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    found = fit_sharpness(outputs_NC, labels_N, torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(chances(outputs_NC, found), torch.full((6, 3), 1 / 3))
