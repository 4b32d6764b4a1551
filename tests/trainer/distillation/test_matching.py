from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.errors import ConfigError
from lipt.trainer.distillation import SyntheticSet
from lipt.trainer.distillation.distillation import distance, gradients
from tests.trainer.distillation.conftest import small


def plane(*, bias: bool = False) -> nn.Linear:
    """Two classes of points of a plane, with weights of zero."""
    model = nn.Linear(2, 2, bias=bias)
    nn.init.zeros_(model.weight)
    return model


def of(points: list[list[float]], weights: list[float] | None = None) -> tuple[Tensor, ...]:
    """The gradient by points of the first class."""
    points_B = torch.tensor(points)
    weights_B = torch.ones(len(points)) if weights is None else torch.tensor(weights)
    return gradients(plane(), points_B, 0, weights_B)


def test_the_gradient_is_the_error_times_the_point() -> None:
    # Softmax of zeros is a half each: the errors are -1/2 of the class and 1/2 of the other.
    (found,) = of([[4.0, 0.0]])
    assert found.tolist() == [[-2.0, 0.0], [2.0, 0.0]]


def test_an_examples_weight_counts() -> None:
    assert torch.equal(of([[4.0, 0.0], [0.0, 9.0]], [1.0, 0.0])[0], of([[4.0, 0.0]])[0])
    assert of([[4.0, 0.0], [0.0, 8.0]], [3.0, 1.0])[0][0].tolist() == [-1.5, -1.0]


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


def test_the_distance_falls_along_the_hand_derived_gradient() -> None:
    # The distance is 2 (1 - x / sqrt(x^2 + y^2)); by x at (0, 1) that is -2, by y nothing.
    point = torch.tensor([[0.0, 1.0]], requires_grad=True)
    found = gradients(plane(), point, 0, torch.ones(1), differentiable=True)
    (by_point,) = torch.autograd.grad(distance(of([[1.0, 0.0]]), found), [point])
    assert by_point[0].tolist() == pytest.approx([-2.0, 0.0])


def test_all_images_of_a_match_are_shifted_and_mirrored_alike(networks_of: Any) -> None:
    networks = networks_of(small(augmentation="crop_flip", padding=2))
    images_BCHW = torch.rand(1, 1, 8, 8).expand(3, -1, -1, -1)
    found = [
        networks.augmented(images_BCHW, torch.Generator().manual_seed(seed), alike=True)
        for seed in range(5)
    ]
    assert all(torch.equal(one[0], one[2]) for one in found)
    assert len({one[0].sum().item() for one in found}) > 1
    each = networks.augmented(images_BCHW, torch.Generator().manual_seed(1), alike=False)
    assert not torch.equal(each[0], each[2])


def stages(digits: Dataset, number: int) -> SyntheticSet:
    """Stages of one real image of each class."""
    synthetic = SyntheticSet.empty((1, 8, 8), digits.class_names)
    for stage in range(number):
        ids = [int((digits.labels_N == label).nonzero()[stage]) for label in range(10)]
        synthetic = synthetic.extended(digits.images(torch.tensor(ids)), torch.arange(10))
    return synthetic


def weights(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def test_a_network_enters_a_stage_as_the_stages_before_leave_it(
    digits: Dataset, networks_of: Any
) -> None:
    networks = networks_of(small(per_class=3, stages=3))
    synthetic = stages(digits, 2)
    entering = [weights(networks.enter(stage, 0, synthetic)) for stage in range(3)]
    assert torch.equal(entering[0], weights(networks.untrained(0)))
    assert not torch.equal(entering[1], entering[0])
    assert not torch.equal(entering[2], entering[1])
    # The second stage's images have no say on how a network comes out of the first.
    assert torch.equal(weights(networks.enter(1, 0, stages(digits, 1))), entering[1])
    assert not torch.equal(weights(networks.untrained(1)), entering[0])


def test_a_model_with_batch_norm_is_refused(networks_of: Any) -> None:
    with pytest.raises(ConfigError, match=r"resnet8 has batch norm: .* such as convnet"):
        networks_of(small(), "resnet8").untrained(0)
