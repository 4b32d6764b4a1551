"""Kernels against the gradients themselves, which only tests can afford."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipt.coordinator.selection.gradients.kernels import (
    gradient_cosines,
    gradient_distances,
    gradient_products,
    gradient_rows,
    squared_gradient_norms,
)
from lipt.coordinator.signals.signals import Signals


def make_signals(
    num_examples: int, num_classes: int, num_features: int, *, has_bias: bool, seed: int = 0
) -> Signals:
    generator = torch.Generator().manual_seed(seed)
    return Signals(
        errors_NC=torch.randn(num_examples, num_classes, generator=generator),
        features_ND=torch.randn(num_examples, num_features, generator=generator),
        labels_N=torch.zeros(num_examples, dtype=torch.int64),
        has_bias=has_bias,
    )


def materialized(signals: Signals) -> Tensor:
    features_NF = signals.features_ND.double()
    if signals.has_bias:
        features_NF = torch.cat([features_NF, torch.ones(len(signals), 1)], dim=1)
    return (signals.errors_NC.double()[:, :, None] * features_NF[:, None, :]).flatten(1)


@settings(deadline=None, max_examples=25)
@given(
    num_left=st.integers(1, 9),
    num_right=st.integers(1, 9),
    num_classes=st.integers(1, 5),
    num_features=st.integers(1, 7),
    has_bias=st.booleans(),
)
def test_kernels_are_those_of_the_materialized_gradients(
    num_left: int, num_right: int, num_classes: int, num_features: int, *, has_bias: bool
) -> None:
    left = make_signals(num_left, num_classes, num_features, has_bias=has_bias)
    right = make_signals(num_right, num_classes, num_features, has_bias=has_bias, seed=1)
    left_NG, right_NG = materialized(left), materialized(right)
    expected = {
        gradient_products: left_NG @ right_NG.T,
        gradient_distances: torch.cdist(
            left_NG, right_NG, compute_mode="donot_use_mm_for_euclid_dist"
        ),
        gradient_cosines: torch.nn.functional.normalize(left_NG)
        @ torch.nn.functional.normalize(right_NG).T,
    }
    for kernel, expected_nm in expected.items():
        values_nm = kernel(left, right)
        assert values_nm.dtype == torch.float32
        torch.testing.assert_close(values_nm.double(), expected_nm, rtol=1e-4, atol=1e-4)
    squares_N = squared_gradient_norms(left)
    torch.testing.assert_close(squares_N.double(), left_NG.square().sum(dim=1), rtol=1e-5, atol=0)


def test_products_by_hand() -> None:
    # (1*3 + 2*4) (5*6 + 1) = 341; without the bias 330.
    left = Signals(torch.tensor([[1.0, 2.0]]), torch.tensor([[5.0]]), torch.tensor([0]))
    right = Signals(torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0]]), torch.tensor([0]))
    assert gradient_products(left, right).tolist() == [[341.0]]
    without = Signals(left.errors_NC, left.features_ND, left.labels_N, has_bias=False)
    assert gradient_products(without, right).tolist() == [[330.0]]


@pytest.mark.parametrize("num_features", [3, 64, 511])
def test_equal_gradients_are_at_no_distance_in_the_same_direction(num_features: int) -> None:
    # The rounding of a squared distance of 0 would be a distance of some 1e-3 of the norm.
    once = make_signals(40, 10, num_features, has_bias=True)
    twice = gradient_rows(once, torch.arange(40).repeat(2))
    distances_nm = gradient_distances(twice, once)
    cosines_nm = gradient_cosines(twice, once)
    for shift in (0, 40):
        own_N = torch.arange(40)
        assert (distances_nm[own_N + shift, own_N] == 0).all()
        assert (cosines_nm[own_N + shift, own_N] == 1).all()
    assert (distances_nm == 0).sum() == 80


def test_zero_gradients_have_no_direction() -> None:
    signals = Signals(
        torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0], [1.0]]), torch.tensor([0, 0])
    )
    assert gradient_cosines(signals, signals).tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert gradient_distances(signals, signals)[0, 0] == 0
    # |e| sqrt(|h|^2 + 1)
    assert gradient_distances(signals, signals)[0, 1].item() == pytest.approx(2**0.5)


def test_half_precision_signals_are_computed_on_in_float32() -> None:
    signals = make_signals(7, 3, 300, has_bias=True)
    half = Signals(signals.errors_NC.half(), signals.features_ND.half(), signals.labels_N)
    single = Signals(half.errors_NC.float(), half.features_ND.float(), signals.labels_N)
    assert torch.equal(gradient_products(half, half), gradient_products(single, single))
    assert torch.equal(squared_gradient_norms(half), squared_gradient_norms(single))
