"""The Hessian's diagonal against autograd and its closed form, and CRAIG on what it scales."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lipt.coordinator.selection.gradients import curvature
from lipt.coordinator.selection.gradients.curvature import (
    averaged_diagonal,
    hessian_product,
)
from lipt.coordinator.selection.gradients.vectors import with_bias
from lipt.coordinator.selection.registry import find_strategy
from lipt.coordinator.selection.select import select
from lipt.coordinator.selection.strategies.adacore import adacore, factored, precondition
from lipt.coordinator.selection.strategies.craig import craig
from lipt.coordinator.signals.compute import errors_of
from lipt.coordinator.signals.signals import Signals, probabilities_of
from tests.coordinator.selection.builders import half, signals_of

ADACORE = find_strategy("adacore")


def make_signals(num_examples: int, *, has_bias: bool = True, num_features: int = 5) -> Signals:
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.randint(0, 3, (num_examples,), generator=generator)
    logits_NC = 2 * torch.randn(num_examples, 3, generator=generator)
    features_ND = torch.randn(num_examples, num_features, generator=generator).relu()
    features_ND *= torch.arange(1, num_features + 1)
    return Signals(errors_of(logits_NC, labels_N), features_ND, labels_N, has_bias=has_bias)


def exact_diagonal(signals: Signals) -> Tensor:
    """Mean of p (1 - p) h^2; C x F."""
    probabilities_NC = probabilities_of(signals.errors_NC, signals.labels_N)
    features_NF = with_bias(signals.features_ND, float(signals.has_bias))
    return (probabilities_NC * (1 - probabilities_NC)).T @ features_NF.square() / len(signals)


@settings(deadline=None, max_examples=15)
@given(
    num_examples=st.integers(1, 6), num_classes=st.integers(2, 4), num_features=st.integers(1, 4)
)
def test_hessian_product_is_autograds(
    num_examples: int, num_classes: int, num_features: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    features_BF = torch.randn(num_examples, num_features, generator=generator, dtype=torch.float64)
    labels_B = torch.randint(0, num_classes, (num_examples,), generator=generator)
    weight_CF, vector_CF = torch.randn(
        2, num_classes, num_features, generator=generator, dtype=torch.float64
    )

    def loss(weight_CF: Tensor) -> Tensor:
        return functional.cross_entropy(features_BF @ weight_CF.T, labels_B)

    _, expected_CF = torch.autograd.functional.hvp(loss, weight_CF, vector_CF)
    probabilities_BC = (features_BF @ weight_CF.T).softmax(dim=-1)
    product_CF = hessian_product(probabilities_BC, features_BF, vector_CF)
    torch.testing.assert_close(product_CF, expected_CF)


@pytest.mark.parametrize("has_bias", [True, False])
def test_estimates_average_to_the_exact_diagonal(has_bias: bool) -> None:
    signals = make_signals(40, has_bias=has_bias)
    exact_CF = exact_diagonal(signals)
    assert exact_CF.shape == (3, 6 if has_bias else 5)
    # One batch and no decay: each estimate is unbiased by itself.
    estimates = torch.stack(
        [averaged_diagonal(signals, decay=0.0, seed=seed, batch_size=40) for seed in range(2000)]
    )
    errors_CF = (estimates.mean(dim=0) - exact_CF).abs()
    assert (errors_CF < 5 * estimates.std(dim=0) / 2000**0.5 + 1e-6).all()
    assert errors_CF.max() < 0.1 * exact_CF.max()


def test_the_average_is_corrected_for_its_start() -> None:
    # A hundredth of the estimates of 4 batches, uncorrected, would be some 0.04 of the diagonal.
    signals = make_signals(64)
    estimates = [
        averaged_diagonal(signals, decay=0.99, seed=seed, batch_size=16) for seed in range(800)
    ]
    ratio = torch.stack(estimates).mean() / exact_diagonal(signals).mean()
    assert ratio.item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        (0.0, 28.0),  # the last batch alone
        (0.5, 21.0),  # weights 1/7, 2/7, 4/7
        (0.999999, 49 / 3),  # all alike
    ],
)
def test_batches_are_averaged_with_weights_that_decay(
    decay: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([7.0, 14.0, 28.0])
    # A Hessian that is a multiple of the identity: each probe shows exactly its diagonal.
    monkeypatch.setattr(
        curvature, "hessian_product", lambda _p, _h, vector_CF: next(values) * vector_CF
    )
    average_CF = averaged_diagonal(make_signals(30), decay=decay, seed=0, batch_size=10)
    torch.testing.assert_close(average_CF, torch.full((3, 6), expected), rtol=1e-4, atol=0)


def test_one_seed_gives_one_estimate() -> None:
    signals = make_signals(50)
    first, again, other = (
        averaged_diagonal(signals, decay=0.9, seed=seed, batch_size=16) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_diagonal_of_rank_one_is_its_factors() -> None:
    class_C, feature_F = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 0.0, 4.0])
    by_class_C, by_feature_F = factored(torch.outer(class_C, feature_F))
    # Relative to their means, 2 and 2.
    assert by_class_C.tolist() == pytest.approx([0.5, 1.5])
    assert by_feature_F.tolist() == pytest.approx([1.0, 0.0, 2.0])


def test_negative_estimates_count_as_no_curvature() -> None:
    by_class_C, by_feature_F = factored(torch.tensor([[-4.0, 1.0], [1.0, 6.0]]))
    # Row means -1.5 and 3.5; column means -1.5 and 3.5.
    assert by_class_C.tolist() == by_feature_F.tolist() == [0.0, 2.0]


def test_preconditioned_gradients_are_the_gradients_over_the_factors() -> None:
    signals = make_signals(30)
    scaled = precondition(signals, seed=0, decay=0.9, damping=0.5)
    by_class_C, by_feature_F = factored(averaged_diagonal(signals, decay=0.9, seed=0))
    assert not scaled.has_bias
    assert scaled.features_ND.shape == (30, 6)
    features_NF = with_bias(signals.features_ND, 1.0)
    gradients = signals.errors_NC[:, :, None] * features_NF[:, None, :]
    expected = gradients / ((by_class_C + 0.5)[:, None] * (by_feature_F + 0.5))
    torch.testing.assert_close(
        scaled.errors_NC[:, :, None] * scaled.features_ND[:, None, :], expected
    )


def test_what_never_bends_the_loss_is_not_blown_up() -> None:
    signals = make_signals(30)
    signals.features_ND[:, 2] = 0
    signals.features_ND[4, 2] = 1e-3
    scaled = precondition(signals, seed=0)
    assert scaled.features_ND.isfinite().all()
    # At most 1 / damping.
    assert scaled.features_ND[4, 2] <= 1e-3 / 0.01 * 1.0001


def test_a_model_that_is_certain_has_no_curvature_to_divide_by() -> None:
    signals = signals_of(torch.ones(6, 2), torch.zeros(6, 3))
    scaled = precondition(signals, seed=0)
    assert scaled.errors_NC.tolist() == [[0.0] * 3] * 6
    assert scaled.features_ND.isfinite().all()
    assert adacore(scaled, 3, seed=0).indices_K.tolist() == [0, 1, 2]


def test_half_precision_stays_half() -> None:
    signals = make_signals(20)
    scaled = precondition(half(signals), seed=0)
    assert scaled.errors_NC.dtype == scaled.features_ND.dtype == torch.float16
    assert scaled.features_ND.isfinite().all()


def test_is_craig_on_preconditioned_signals() -> None:
    signals = make_signals(60)
    chosen = select(ADACORE, signals, 9, balanced=False, seed=4, options=ADACORE.parse_options({}))
    expected = craig(precondition(signals, seed=4), 9, seed=4)
    assert chosen.indices_K.tolist() == sorted(expected.indices_K.tolist())
    assert chosen.indices_K.tolist() != sorted(craig(signals, 9, seed=4).indices_K.tolist())
    assert chosen.weights_K.sum() == 60


def test_curvature_is_that_of_all_classes_also_where_each_selects_by_itself() -> None:
    signals = make_signals(60)
    options = ADACORE.parse_options({})
    chosen = select(ADACORE, signals, 9, balanced=True, seed=4, options=options)
    scaled = precondition(signals, seed=4)
    for label in range(3):
        rows_n = torch.nonzero(signals.labels_N == label).flatten()
        expected = craig(scaled.of_class(label), 3, seed=0).indices_K
        ids = chosen.indices_K[signals.labels_N[chosen.indices_K] == label]
        assert ids.tolist() == rows_n[expected].sort().values.tolist()
    assert chosen.weights_K.sum() == 60


def test_a_feature_in_large_units_does_not_decide_what_is_chosen() -> None:
    signals = make_signals(80)
    signals.features_ND[:, 1] *= 100
    scaled = precondition(signals, seed=0)
    largest_D, largest_F = signals.features_ND.amax(dim=0), scaled.features_ND.amax(dim=0)
    assert largest_D[1] > 50 * largest_D[0]
    assert largest_F[1] < largest_F[0]
