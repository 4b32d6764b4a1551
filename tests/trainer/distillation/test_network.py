from __future__ import annotations

from typing import Any

import pytest
import torch

from lipt.common.data import Dataset
from lipt.common.errors import ConfigError
from lipt.trainer.distillation import SyntheticSet
from tests.trainer.distillation.conftest import small


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


def test_training_lowers_the_loss(digits: Dataset, networks_of: Any) -> None:
    networks = networks_of(small(learning_rate=0.1, augmentation="none"))
    images_NCHW, labels_N = stages(digits, 1).until(0)
    pixels_NCHW = images_NCHW.float() / 255
    network = networks.untrained(0)

    def loss() -> float:
        logits_NC = network(networks.normalized(pixels_NCHW))
        return torch.nn.functional.cross_entropy(logits_NC, labels_N).item()

    before = loss()
    networks.train(network, pixels_NCHW, labels_N, 20, torch.Generator())
    assert loss() < before / 2


def test_a_model_with_batch_norm_is_refused(networks_of: Any) -> None:
    with pytest.raises(ConfigError, match=r"resnet8 has batch norm: .* such as convnet"):
        networks_of(small(), "resnet8").untrained(0)
