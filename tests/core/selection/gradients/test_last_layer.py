"""The factored last layer against one that is written out, and autograd."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.selection.gradients import last_layer
from lipt.core.selection.gradients.last_layer import (
    LastLayer,
    alignments,
    in_validation_span,
    last_layer_at,
    step,
    validation_gradient,
)
from lipt.core.selection.gradients.vectors import LayerGradient, Vectors, gradients_of
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import random_signals, signals_of, validation_loss


@dataclass(frozen=True)
class WrittenOut:
    """Data on a last layer whose weights are known; the last feature is the bias's 1."""

    weight_CD: Tensor
    signals: Signals
    features_ND: Tensor
    features_VD: Tensor

    def validation_loss(self, weight_CD: Tensor) -> Tensor:
        assert self.signals.validation is not None
        logits_VC = self.features_VD @ weight_CD.T
        return functional.cross_entropy(logits_VC, self.signals.validation.labels_N)

    def gradients(self, rows: Tensor) -> Tensor:
        """Every example's own, by autograd."""
        gradients = []
        for row in rows.tolist():
            weight_CD = self.weight_CD.clone().requires_grad_()
            logits_C = weight_CD @ self.features_ND[row]
            loss = functional.cross_entropy(logits_C, self.signals.labels_N[row])
            gradients.append(torch.autograd.grad(loss, weight_CD)[0])
        return torch.stack(gradients)

    def loss_after(self, rows: Tensor, learning_rate: float) -> float:
        total_CD = self.gradients(rows).sum(dim=0)
        return float(self.validation_loss(self.weight_CD - learning_rate * total_CD))


def written_out(num_examples: int, num_validation: int, *, has_bias: bool = True) -> WrittenOut:
    generator = torch.Generator().manual_seed(num_examples + num_validation)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    num_classes, num_features = 4, 6
    weight_CD = normal(num_classes, num_features)
    features = [normal(size, num_features) for size in (num_examples, num_validation)]
    if has_bias:
        for features_ND in features:
            features_ND[:, -1] = 1
    parts = []
    for features_ND in features:
        labels_N = torch.randint(num_classes, (len(features_ND),), generator=generator)
        errors_NC = errors_of(features_ND @ weight_CD.T, labels_N)
        kept_ND = features_ND[:, :-1] if has_bias else features_ND
        parts.append(Signals(errors_NC, kept_ND.float(), labels_N, has_bias=has_bias))
    signals = replace(parts[0], validation=parts[1])
    return WrittenOut(weight_CD, signals, *features)


def validation_of(signals: Signals) -> Signals:
    assert signals.validation is not None
    return signals.validation


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [[3], [0, 5, 6, 7, 8, 9, 10]])
def test_a_step_gives_the_loss_and_the_gradient_of_the_layer_written_out(
    has_bias: bool, rows: list[int]
) -> None:
    truth = written_out(11, 9, has_bias=has_bias)
    chosen = torch.tensor(rows)
    layer = last_layer_at(validation_of(truth.signals))
    assert validation_loss(layer) == pytest.approx(
        float(truth.validation_loss(truth.weight_CD)), rel=1e-5
    )
    stepped = step(layer, gradients_of(truth.signals)[chosen], 0.3)
    assert validation_loss(stepped) == pytest.approx(truth.loss_after(chosen, 0.3), rel=1e-5)

    moved_CD = truth.weight_CD - 0.3 * truth.gradients(chosen).sum(dim=0)
    moved_CD.requires_grad_()
    (expected_CD,) = torch.autograd.grad(truth.validation_loss(moved_CD), moved_CD)
    gradient = validation_gradient(stepped)
    found = [gradient.weight_CD, gradient.bias_C[:, None]] if has_bias else [gradient.weight_CD]
    torch.testing.assert_close(torch.cat(found, dim=1), expected_CD, rtol=1e-5, atol=1e-6)
    assert gradient.norm == pytest.approx(float(expected_CD.norm()), rel=1e-5)


@pytest.fixture(params=[True, False], ids=["compiled", "torch"])
def may_compile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(last_layer, "can_compile", lambda _: False)
    return bool(request.param)


@pytest.mark.usefixtures("may_compile")
@pytest.mark.parametrize("has_bias", [False, True])
def test_alignments_are_products_of_gradients(has_bias: bool) -> None:
    truth = written_out(11, 9, has_bias=has_bias)
    gradient = validation_gradient(last_layer_at(validation_of(truth.signals)))
    expected_N = (
        truth.gradients(torch.arange(11))
        * torch.autograd.functional.jacobian(truth.validation_loss, truth.weight_CD)
    ).sum(dim=(1, 2))
    torch.testing.assert_close(
        alignments(gradients_of(truth.signals), gradient), expected_N, rtol=1e-4, atol=1e-6
    )


def random_gradients(num_classes: int = 10) -> tuple[Vectors, LayerGradient]:
    gradients = gradients_of(random_signals(129, num_classes, 33))
    weight_CD = random_signals(33, num_classes, seed=1).errors_NC.T.double()
    return gradients, LayerGradient(weight_CD, torch.ones(num_classes).double())


def test_compiled_alignments_are_those_of_torch_to_the_last_digit_of_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gradients, gradient = random_gradients()
    assert last_layer.aligns_compiled(gradients)
    compiled_N = alignments(gradients, gradient)
    monkeypatch.setattr(last_layer, "can_compile", lambda _: False)
    assert not last_layer.aligns_compiled(gradients)
    assert torch.equal(compiled_N.float(), alignments(gradients, gradient).float())


def test_many_classes_and_half_precision_are_left_to_torch() -> None:
    many, _ = random_gradients(num_classes=65)
    assert not last_layer.aligns_compiled(many)
    few, _ = random_gradients()
    assert not last_layer.aligns_compiled(few.to(torch.float16))


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_span_of_validation_keeps_losses_and_alignments(has_bias: bool) -> None:
    truth = written_out(20, 3, has_bias=has_bias)
    gradients, layer = gradients_of(truth.signals), last_layer_at(validation_of(truth.signals))
    fewer, layer_on_fewer = in_validation_span(gradients, layer)
    assert fewer.features_ND.shape == (20, 3)
    assert not fewer.bias
    assert not layer_on_fewer.bias
    chosen = torch.tensor([1, 4])
    layers = [step(layer, gradients[chosen], 0.5), step(layer_on_fewer, fewer[chosen], 0.5)]
    assert validation_loss(layers[0]) == pytest.approx(validation_loss(layers[1]), rel=1e-5)
    torch.testing.assert_close(
        alignments(gradients_of(truth.signals), validation_gradient(layers[0])),
        alignments(fewer, validation_gradient(layers[1])),
        rtol=1e-5,
        atol=1e-6,
    )


def test_equal_validation_examples_have_a_span_too() -> None:
    one = torch.tensor([[1.0, 2.0, 3.0]])
    errors = torch.tensor([[-0.5, 0.5]])
    layer = last_layer_at(signals_of(one.repeat(2, 1), errors.repeat(2, 1)))
    fewer, layer_on_fewer = in_validation_span(gradients_of(signals_of(one, errors)), layer)
    # h . h + 1 = 15 for each pair.
    products = fewer.features_ND @ layer_on_fewer.features_VD.T
    assert products.flatten().tolist() == pytest.approx([15.0, 15.0])


def test_rounded_probabilities_stay_finite() -> None:
    # Wrong beyond what float32 can tell: e = (-1, 1), so p = (0, 1).
    validation = signals_of(errors_NC=torch.tensor([[-1.0, 1.0]]))
    assert validation_loss(last_layer_at(validation)) == pytest.approx(25 * math.log(2))


def test_a_confident_example_keeps_its_gradient() -> None:
    # p of the label is 1 - 1e-30: p - 1 in any precision would be 0.
    validation = signals_of(errors_NC=torch.tensor([[-1e-30, 1e-30]]))
    gradient = validation_gradient(last_layer_at(validation))
    assert gradient.bias_C.tolist() == pytest.approx([-1e-30, 1e-30], rel=1e-5, abs=0.0)


def test_a_vanishing_gradient_is_raised_where_that_is_asked_for() -> None:
    # Losses of exp(-2000) and exp(-1500): beside the second the first is nothing.
    layer = LastLayer(
        features_VD=torch.tensor([[1.0], [3.0]], dtype=torch.float64),
        logits_VC=torch.tensor([[2000.0, 0.0], [1500.0, 0.0]], dtype=torch.float64),
        labels_V=torch.zeros(2, dtype=torch.int64),
        bias=1.0,
    )
    assert validation_gradient(layer).norm == 0
    raised = validation_gradient(layer, raised=True)
    # The mean over both.
    assert raised.weight_CD.tolist() == [[-1.5], [1.5]]
    assert raised.bias_C.tolist() == [-0.5, 0.5]
    # What is not vanishing is left as it is, and of a single class there is no error to raise.
    there = replace(layer, logits_VC=layer.logits_VC / 1000)
    assert validation_gradient(there, raised=True).minus(validation_gradient(there)).norm == 0
    single = replace(layer, logits_VC=layer.logits_VC[:, :1])
    assert validation_gradient(single, raised=True).norm == 0
