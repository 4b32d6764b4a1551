"""The Hessian's diagonal against autograd and by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients import curvature
from lipt.core.selection.gradients.curvature import mean_curvatures
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import half, random_predictions, signals_of
from tests.properties import at_most


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
        curvature, "row_blocks", lambda count, size, _: row_blocks(count, size, block_bytes)
    )
    for found, expected in zip(mean_curvatures(signals), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=0.0)


def test_half_precision_is_summed_in_float64() -> None:
    halved = half(random_predictions(200))
    single = Signals(halved.errors_NC.float(), halved.features_ND.float(), halved.labels_N)
    assert all(map(torch.equal, mean_curvatures(halved), mean_curvatures(single)))
