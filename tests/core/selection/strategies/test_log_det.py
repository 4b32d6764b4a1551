"""Log-determinants of directions of the plane, and against determinants."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lipt.core.selection.gradients.vectors import Rows, ScaledCosine, SpaceName, in_space
from lipt.core.selection.strategies.log_det import log_det
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import random_signals, random_subsets, signals_of

SPACES: list[SpaceName] = ["features", "gradients"]


def similarities(signals: Signals, space: SpaceName) -> Tensor:
    return ScaledCosine(Rows(in_space(signals, space))).rows(torch.arange(len(signals)))


def value(similarities_NN: Tensor, chosen: list[int], ridge: float) -> float:
    kernel = similarities_NN[chosen][:, chosen] + ridge * torch.eye(len(chosen))
    return float(torch.linalg.slogdet(kernel).logabsdet)


def test_directions_of_the_plane() -> None:
    # All gain the same at first: 0. Its opposite has similarity 0 and gains most, log 1.001;
    # 90 degrees is halfway from both; what is left is nearly a copy of 0.
    radians = torch.tensor([0, 10, 90, 180]) * math.pi / 180
    given = signals_of(torch.stack([radians.cos(), radians.sin()], dim=1))
    assert log_det(given, 4, space="features").indices_K.tolist() == [0, 3, 2, 1]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("ridge", [1e-3, 0.1, 1.0])
def test_every_pick_has_the_largest_determinant(space: SpaceName, ridge: float) -> None:
    signals = random_signals(30, 3, 8)
    similarities_NN = similarities(signals, space)
    # All alone have the same determinant: the first is 0.
    expected = [0]
    while len(expected) < 30:
        left = [i for i in range(30) if i not in expected]
        values = [value(similarities_NN, [*expected, i], ridge) for i in left]
        expected.append(left[values.index(max(values))])
    chosen = log_det(signals, 30, space=space, ridge=ridge).indices_K.tolist()
    assert chosen == expected


@pytest.mark.parametrize("space", SPACES)
def test_determinant_is_above_that_of_random_choices(space: SpaceName) -> None:
    # With the wrong sign it would be far below.
    signals = random_signals(300, 3, 8)
    similarities_NN = similarities(signals, space)
    found = value(similarities_NN, log_det(signals, 20, space=space).indices_K.tolist(), 1e-3)
    draws = random_subsets(300, 20)
    assert found > 1 + max(value(similarities_NN, drawn.tolist(), 1e-3) for drawn in draws)


@pytest.mark.parametrize("ridge", [1e-6, 1e-3])
def test_copies_come_after_every_direction(ridge: float) -> None:
    # Ten features of rank 8 + 1 each, twenty times.
    signals = random_signals(10, 3, 8).take(torch.arange(10).repeat(20))
    chosen = log_det(signals, 200, space="gradients", ridge=ridge).indices_K.tolist()
    assert sorted(chosen) == list(range(200))
    assert sorted(chosen[:10]) == list(range(10))
