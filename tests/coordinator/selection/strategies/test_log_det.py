"""Log-determinants of directions of the plane, and against determinants."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lipt.coordinator.selection.gradients.rows import Rows, ScaledCosine
from lipt.coordinator.selection.gradients.vectors import SpaceName, in_space
from lipt.coordinator.selection.strategies.log_det import log_det, span_greedily
from lipt.coordinator.signals.signals import Signals

SPACES: list[SpaceName] = ["features", "gradients"]


def directions(*degrees: float) -> Signals:
    """Unit features at these angles; all errors are zero."""
    radians = torch.tensor(degrees) * math.pi / 180
    return Signals(
        errors_NC=torch.zeros(len(degrees), 2),
        features_ND=torch.stack([radians.cos(), radians.sin()], dim=1),
        labels_N=torch.zeros(len(degrees), dtype=torch.int64),
    )


def generic(num_examples: int) -> Signals:
    generator = torch.Generator().manual_seed(0)
    return Signals(
        errors_NC=torch.randn(num_examples, 3, generator=generator),
        features_ND=torch.randn(num_examples, 8, generator=generator),
        labels_N=torch.zeros(num_examples, dtype=torch.int64),
    )


def similarities(signals: Signals, space: SpaceName) -> Tensor:
    return ScaledCosine(Rows(in_space(signals, space))).rows(torch.arange(len(signals)))


def value(similarities_NN: Tensor, chosen: list[int], ridge: float) -> float:
    kernel = similarities_NN[chosen][:, chosen] + ridge * torch.eye(len(chosen))
    return float(torch.linalg.slogdet(kernel).logabsdet)


def test_directions_of_the_plane() -> None:
    # All gain the same at first: 0. Its opposite has similarity 0 and gains most, log 1.001;
    # 90 degrees is halfway from both; what is left is nearly a copy of 0.
    given = directions(0, 10, 90, 180)
    chosen = log_det(given, 4, space="features")
    assert chosen.indices_K.tolist() == [0, 3, 2, 1]
    assert chosen.weights_K.tolist() == [1.0] * 4


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("ridge", [1e-3, 0.1, 1.0])
def test_every_pick_has_the_largest_determinant(space: SpaceName, ridge: float) -> None:
    signals = generic(30)
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
    signals = generic(300)
    similarities_NN = similarities(signals, space)
    generator = torch.Generator().manual_seed(1)
    draws = [torch.randperm(300, generator=generator)[:20].tolist() for _ in range(20)]
    found = value(similarities_NN, log_det(signals, 20, space=space).indices_K.tolist(), 1e-3)
    assert found > 1 + max(value(similarities_NN, draw, 1e-3) for draw in draws)


@pytest.mark.parametrize("space", SPACES)
def test_rows_computed_ahead_and_blocks_change_nothing(space: SpaceName) -> None:
    signals = generic(200)
    expected = span_greedily(ScaledCosine(Rows(in_space(signals, space))), 60, ridge=1e-3)
    for rows_ahead, block_bytes in ((1, 10**6), (7, 1000), (200, 1)):
        split = ScaledCosine(Rows(in_space(signals, space), block_bytes=block_bytes))
        found = span_greedily(split, 60, ridge=1e-3, rows_ahead=rows_ahead)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("space", SPACES)
def test_order_of_the_data_does_not_matter_up_to_the_first_tie(space: SpaceName) -> None:
    # The first pick is a tie of all; it stays the first.
    signals = generic(200)
    order = torch.randperm(199, generator=torch.Generator().manual_seed(1)) + 1
    order = torch.cat([torch.tensor([0]), order])
    shuffled = log_det(signals.take(order), 40, space=space).indices_K
    assert torch.equal(order[shuffled], log_det(signals, 40, space=space).indices_K)


@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("errors", [0.0, 0.7])
def test_all_equal_examples_are_taken_in_order(ridge: float, errors: float) -> None:
    same = Signals(torch.full((300, 3), errors), torch.full((300, 7), 0.3), torch.zeros(300).long())
    assert log_det(same, 300, ridge=ridge).indices_K.tolist() == list(range(300))


@pytest.mark.parametrize("ridge", [1e-6, 1e-3])
def test_copies_come_after_every_direction(ridge: float) -> None:
    # Ten features of rank 8 + 1 each, twenty times.
    signals = generic(10).take(torch.arange(10).repeat(20))
    chosen = log_det(signals, 200, space="gradients", ridge=ridge).indices_K.tolist()
    assert sorted(chosen) == list(range(200))
    assert sorted(chosen[:10]) == list(range(10))


def test_single_example() -> None:
    assert log_det(directions(30), 1).indices_K.tolist() == [0]
