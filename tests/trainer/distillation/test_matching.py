"""Gradient matching, on a linear model whose gradient can be told by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model
from lipt.trainer.distillation.matching import distance, gradients


def plane(*, bias: bool = False) -> nn.Linear:
    """Two classes of points of a plane, with weights of zero."""
    model = nn.Linear(2, 2, bias=bias)
    nn.init.zeros_(model.weight)
    return model


def of(points: list[list[float]], weights: list[float] | None = None) -> tuple[Tensor, ...]:
    """The gradient by points of the first class."""
    points_B = torch.tensor(points)
    weights_B = torch.ones(len(points)) if weights is None else torch.tensor(weights)
    return gradients(plane(), points_B, torch.zeros(len(points), dtype=torch.int64), weights_B)


def test_the_gradient_is_the_error_times_the_point() -> None:
    # Softmax of zeros is a half each: the errors are -1/2 of the class and 1/2 of the other.
    (found,) = of([[4.0, 0.0]])
    assert found.tolist() == [[-2.0, 0.0], [2.0, 0.0]]


def test_an_examples_weight_counts() -> None:
    assert torch.equal(of([[4.0, 0.0], [0.0, 9.0]], [1.0, 0.0])[0], of([[4.0, 0.0]])[0])
    assert of([[4.0, 0.0], [0.0, 8.0]], [3.0, 1.0])[0][0].tolist() == [-1.5, -1.0]


def test_biases_are_left_out() -> None:
    labels_B = torch.zeros(1, dtype=torch.int64)
    assert len(gradients(plane(bias=True), torch.ones(1, 2), labels_B, torch.ones(1))) == 1


@pytest.mark.parametrize(
    ("synthetic", "expected"),
    [
        ([1.0, 0.0], 0.0),
        ([3.0, 0.0], 0.0),  # the length does not count
        ([0.0, 1.0], 2.0),  # 1 for each of two rows
        ([-1.0, 0.0], 4.0),
    ],
)
def test_the_distance_is_one_minus_the_cosine_of_each_row(
    synthetic: list[float], expected: float
) -> None:
    assert distance(of([[1.0, 0.0]]), of([synthetic])).item() == pytest.approx(expected)


def test_the_real_batch_itself_is_at_no_distance() -> None:
    model = build_model("convnet", num_classes=3, inputs=ImageSpec(1, 8, 8), seed=0)
    images_B = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels_B = torch.full((6,), 2)
    one, other = (gradients(model, images_B, labels_B, torch.ones(6)) for _ in range(2))
    assert len(one) == 4
    assert distance(one, other).item() == pytest.approx(0, abs=1e-4)
    apart = gradients(model, images_B.flip(-1), labels_B, torch.ones(6))
    assert distance(one, apart).item() > 1


def test_the_distance_falls_along_the_hand_derived_gradient() -> None:
    # The distance is 2 (1 - x / sqrt(x^2 + y^2)); by x at (0, 1) that is -2, by y nothing.
    point = torch.tensor([[0.0, 1.0]], requires_grad=True)
    labels_B = torch.zeros(1, dtype=torch.int64)
    found = gradients(plane(), point, labels_B, torch.ones(1), differentiable=True)
    (by_point,) = torch.autograd.grad(distance(of([[1.0, 0.0]]), found), [point])
    assert by_point[0].tolist() == pytest.approx([-2.0, 0.0])
