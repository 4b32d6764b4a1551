from __future__ import annotations

import pytest
import torch
from torch import nn

from lipt.common.errors import ConfigError
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model
from lipt.common.models.head import ALL_BUT_HEAD, freeze, frozen_names, head_names
from lipt.common.models.registry import build_without_values

SHAPE = (1, 8, 8)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.fc = nn.Linear(4, 2)


def normalized() -> nn.Sequential:
    """A linear layer, statistics without parameters, a scaled batch norm, and the head."""
    return nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4), nn.Linear(4, 2)
    )


def resnet8() -> nn.Module:
    return build_model("resnet8", num_classes=10, inputs=ImageSpec(*SHAPE), seed=0)


def test_nothing_is_frozen_without_patterns() -> None:
    assert frozen_names(resnet8(), ()) == frozenset()


def test_all_but_head_leaves_two_tensors_with_or_without_values() -> None:
    model = resnet8()
    empty = build_without_values("resnet8", num_classes=10, inputs=ImageSpec(*SHAPE))
    for built in (model, empty):
        frozen = frozen_names(built, [ALL_BUT_HEAD])
        assert model.state_dict().keys() - frozen == head_names(model) == {"fc.weight", "fc.bias"}


def test_globs_freeze_parameters_and_the_statistics_of_layers_that_are_frozen_whole() -> None:
    statistics = {"running_mean", "running_var", "num_batches_tracked"}
    model = normalized()
    assert frozen_names(model, ["2.*"]) == {f"2.{name}" for name in {"weight", "bias"} | statistics}
    # Its bias is trained, so its statistics go on as well.
    assert frozen_names(model, ["2.w*"]) == {"2.weight"}
    # Of two patterns one matches each; of a layer without parameters the statistics themselves.
    assert frozen_names(model, ["2.weight", "2.bias"]) == frozen_names(model, ["2.*"])
    assert frozen_names(model, ["1.*"]) == {f"1.{name}" for name in statistics}
    assert model.state_dict().keys() - frozen_names(model, [ALL_BUT_HEAD]) == {"3.weight", "3.bias"}


def test_a_tensor_of_two_names_is_frozen_under_both() -> None:
    assert frozen_names(Tied(), ["second.*"]) == {"first.weight", "second.weight"}


def test_frozen_layers_take_no_gradient_and_keep_their_statistics() -> None:
    model = normalized().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    frozen = frozen_names(model, ["0.*", "1.*"])
    freeze(model, frozen)
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(0))).sum().backward()
    assert [module.training for module in model] == [False, False, True, True]
    trained = {name for name, item in model.named_parameters() if item.grad is not None}
    assert trained == {"2.weight", "2.bias", "3.weight", "3.bias"}
    changed = {
        name for name, item in model.state_dict().items() if not torch.equal(item, before[name])
    }
    assert changed == {"2.running_mean", "2.running_var", "2.num_batches_tracked"}


def test_a_pattern_that_matches_nothing_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(ConfigError) as refused:
        frozen_names(resnet8(), ["conv1.*", "layer9.*"])
    said = str(refused.value)
    assert "'layer9.*' matches none of the model's 29 parameters: conv1.weight, bn1.weight" in said
    assert "and 19 more. Give a glob over such names, as 'conv1.*', or 'all-but-head'" in said


def test_freezing_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"all 29 parameters .* nothing is left to train"):
        frozen_names(resnet8(), [ALL_BUT_HEAD, "fc.*"])
