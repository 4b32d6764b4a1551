"""Preconditioned gradients, and CRAIG on what they are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.vectors import with_bias
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.strategies import adacore as module
from lipt.core.selection.strategies.adacore import adacore, mean_curvatures, precondition
from lipt.core.selection.strategies.craig import craig
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals, probabilities_of
from tests.core.selection.builders import (
    half,
    random_predictions,
    random_subsets,
    signals_of,
    written_out,
)
from tests.properties import at_most

ADACORE = find_strategy("adacore")


def make_signals(num_examples: int, *, has_bias: bool = True, num_features: int = 5) -> Signals:
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.randint(0, 3, (num_examples,), generator=generator)
    logits_NC = 2 * torch.randn(num_examples, 3, generator=generator)
    features_ND = torch.randn(num_examples, num_features, generator=generator).relu()
    features_ND *= torch.arange(1, num_features + 1)
    return Signals(errors_of(logits_NC, labels_N), features_ND, labels_N, has_bias=has_bias)


def exactly_preconditioned(signals: Signals, damping: float = 0.01) -> Tensor:
    """Gradients over the whole diagonal, which is no outer product; N x (C F) float64."""
    probabilities_NC = probabilities_of(signals.errors_NC, signals.labels_N, torch.float64)
    features_NF = with_bias(signals.features_ND.double(), float(signals.has_bias))
    diagonal_CF = (probabilities_NC * (1 - probabilities_NC)).T @ features_NF.square()
    return written_out(signals) / (diagonal_CF / diagonal_CF.mean() + damping).flatten()


def distances_left(vectors_NG: Tensor, chosen_K: Tensor) -> float:
    """The sum of all distances to the nearest chosen."""
    return float(torch.cdist(vectors_NG, vectors_NG[chosen_K]).min(dim=1).values.sum())


def test_preconditioned_gradients_are_the_gradients_over_the_factors() -> None:
    signals = make_signals(30)
    scaled = precondition(signals, damping=0.5)
    by_class_C, by_feature_F = (means_n.float() for means_n in mean_curvatures(signals))
    by_class_C, by_feature_F = by_class_C / by_class_C.mean(), by_feature_F / by_feature_F.mean()
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
    scaled = precondition(signals)
    assert scaled.features_ND.isfinite().all()
    # At most 1 / damping.
    assert scaled.features_ND[4, 2] <= 1e-3 / 0.01 * 1.0001


def test_a_model_that_is_certain_has_no_curvature_to_divide_by() -> None:
    signals = signals_of(torch.ones(6, 2), torch.zeros(6, 3))
    scaled = precondition(signals)
    assert scaled.errors_NC.tolist() == [[0.0] * 3] * 6
    assert scaled.features_ND.isfinite().all()
    assert adacore(scaled, 3, seed=0).indices_K.tolist() == [0, 1, 2]


def test_half_precision_stays_half() -> None:
    signals = make_signals(20)
    scaled = precondition(half(signals))
    assert scaled.errors_NC.dtype == scaled.features_ND.dtype == torch.float16
    assert scaled.features_ND.isfinite().all()


def test_is_craig_on_preconditioned_signals() -> None:
    signals = make_signals(60)
    chosen = select(ADACORE, signals, 9, balanced=False, seed=4, options=ADACORE.parse_options({}))
    expected = craig(precondition(signals), 9, seed=4)
    assert chosen.indices_K.tolist() == sorted(expected.indices_K.tolist())
    assert chosen.indices_K.tolist() != sorted(craig(signals, 9, seed=4).indices_K.tolist())
    assert chosen.weights_K.sum() == 60


def test_curvature_is_that_of_all_classes_also_where_each_selects_by_itself() -> None:
    signals = make_signals(60)
    options = ADACORE.parse_options({})
    chosen = select(ADACORE, signals, 9, balanced=True, seed=4, options=options)
    scaled = precondition(signals)
    for label in range(3):
        rows_n = torch.nonzero(signals.labels_N == label).flatten()
        expected = craig(scaled.of_class(label), 3, seed=0).indices_K
        ids = chosen.indices_K[signals.labels_N[chosen.indices_K] == label]
        assert ids.tolist() == rows_n[expected].sort().values.tolist()
    assert chosen.weights_K.sum() == 60


def test_a_feature_in_large_units_does_not_decide_what_is_chosen() -> None:
    signals = make_signals(80)
    signals.features_ND[:, 1] *= 100
    scaled = precondition(signals)
    largest_D, largest_F = signals.features_ND.amax(dim=0), scaled.features_ND.amax(dim=0)
    assert largest_D[1] > 50 * largest_D[0]
    assert largest_F[1] < largest_F[0]


def test_is_as_good_as_dividing_by_the_whole_diagonal_where_there_are_few_examples() -> None:
    # A few hundred: where a diagonal from probes is mostly noise, and worse than none at all.
    signals = make_signals(400, num_features=12)
    exact_NG = exactly_preconditioned(signals)
    options = ADACORE.parse_options({})
    chosen = select(ADACORE, signals, 40, balanced=False, seed=0, options=options).indices_K
    whole = signals_of(exact_NG.float(), torch.ones(400, 1), has_bias=False)
    best, plain = (craig(each, 40, seed=0).indices_K for each in (whole, signals))
    by_chance = [distances_left(exact_NG, drawn) for drawn in random_subsets(400, 40)]
    mean = sum(by_chance) / len(by_chance)
    gain = mean - distances_left(exact_NG, best)
    assert mean - distances_left(exact_NG, chosen) > 0.95 * gain
    assert mean - distances_left(exact_NG, plain) < 0.5 * gain


@settings(max_examples=at_most(15))
@given(
    num_examples=st.integers(1, 6),
    num_classes=st.integers(2, 4),
    num_features=st.integers(1, 4),
    has_bias=st.booleans(),
)
def test_curvatures_are_means_of_autograds_diagonal(
    num_examples: int, num_classes: int, num_features: int, *, has_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    features_ND = torch.randn(num_examples, num_features, generator=generator)
    labels_N = torch.randint(0, num_classes, (num_examples,), generator=generator)
    ones_N1 = torch.ones(num_examples, int(has_bias))
    features_NF = torch.cat([features_ND, ones_N1], dim=1).double()
    weight_CF = torch.randn(
        num_classes, features_NF.shape[1], generator=generator, dtype=torch.float64
    )

    def loss(weights: Tensor) -> Tensor:
        return functional.cross_entropy(features_NF @ weights.view_as(weight_CF).T, labels_N)

    hessian = torch.autograd.functional.hessian(loss, weight_CF.flatten())
    assert isinstance(hessian, Tensor)
    diagonal_CF = hessian.diagonal().view_as(weight_CF)
    errors_NC = errors_of(features_NF @ weight_CF.T, labels_N)
    by_class_C, by_feature_F = mean_curvatures(
        Signals(errors_NC, features_ND, labels_N, has_bias=has_bias)
    )
    torch.testing.assert_close(by_class_C, diagonal_CF.mean(dim=1), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(by_feature_F, diagonal_CF.mean(dim=0), rtol=1e-5, atol=1e-8)


def test_by_hand() -> None:
    # p = (3/4, 1/4) and h = (2, 1 of the bias): 3/16 of both classes, times 4 and 1.
    signals = signals_of(torch.tensor([[2.0]]), torch.tensor([[-0.25, 0.25]]))
    by_class_C, by_feature_F = mean_curvatures(signals)
    assert by_class_C.tolist() == pytest.approx([3 / 16 * 5 / 2] * 2)
    assert by_feature_F.tolist() == pytest.approx([3 / 4, 3 / 16])


def test_a_confident_model_keeps_its_curvature() -> None:
    # p of the label is 1 - 1e-9, which float32 rounds to 1.
    signals = signals_of(errors_NC=torch.tensor([[-1e-9, 1e-9]]), has_bias=False)
    assert mean_curvatures(signals)[0].tolist() == pytest.approx([1e-9, 1e-9])


def test_errors_beyond_those_of_a_softmax_have_no_curvature() -> None:
    signals = signals_of(errors_NC=torch.tensor([[-1.5, 0.5]]), has_bias=False)
    assert mean_curvatures(signals)[0].tolist() == [0.0, 0.25]


@pytest.mark.parametrize("block_bytes", [1, 300])
def test_blocks_change_no_more_than_the_last_digits(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = random_predictions(50)
    whole = mean_curvatures(signals)
    assert all(map(torch.equal, mean_curvatures(signals), whole))
    monkeypatch.setattr(
        module, "row_blocks", lambda count, size, _: row_blocks(count, size, block_bytes)
    )
    for found, expected in zip(mean_curvatures(signals), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=0.0)


def test_half_precision_is_summed_in_float64() -> None:
    halved = half(random_predictions(200))
    single = Signals(halved.errors_NC.float(), halved.features_ND.float(), halved.labels_N)
    assert all(map(torch.equal, mean_curvatures(halved), mean_curvatures(single)))
