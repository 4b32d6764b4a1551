"""Shapes: N images, C classes, D features."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from lipt.common.errors import ConfigError, FactoryNotAllowedError, UnknownNameError
from lipt.common.inputs.columns import Column, ColumnType
from lipt.common.inputs.specs import ColumnsSpec, ImageSpec
from lipt.common.models import (
    build_model,
    find_head,
    forward_with_features,
    known_models,
    memory_format,
)
from lipt.common.models.footprint import measure_model
from lipt.common.models.registry import build_without_values, is_users_own

Write = Callable[[str, str], None]

USERS_MODEL = """
from torch import nn

def small(*, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, num_classes))

def ignores_classes(*, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))

def softmax_inside(*, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, num_classes), nn.Softmax(dim=1))

def returns_pair(*, num_classes):
    class Pair(nn.Module):
        def forward(self, x):
            return x, x
    return Pair()

def convolutional(*, num_classes):
    return nn.Sequential(nn.Conv2d(3, num_classes, 2), nn.Flatten())

def other_size(*, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(13, num_classes))

def dropped_out(*, num_classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Dropout(), nn.Linear(12, num_classes))

def no_model(*, num_classes):
    return "model"

def no_argument():
    return nn.Linear(1, 1)
"""


def build(spec: str, **overrides: object) -> nn.Module:
    arguments = {
        "num_classes": 10,
        "inputs": ImageSpec(3, 32, 32),
        "seed": 0,
        "allowed_modules": ("users_model",),
    }
    return build_model(spec, **(arguments | overrides))  # type: ignore[arg-type]


def test_lists_the_models() -> None:
    assert known_models() == (
        "resnet8",
        "resnet18",
        "wrn28_10",
        "convnet",
        "linear",
        "mlp",
        "text:tiny",
        "torchvision:NAME",
        "package.module:factory",
    )


def test_unknown_model_is_answered_with_the_list() -> None:
    with pytest.raises(UnknownNameError) as caught:
        build("resnet19")
    assert str(caught.value) == (
        "there is no model 'resnet19'. Did you mean resnet18? There are: resnet8, resnet18, "
        "wrn28_10, convnet, linear, mlp, text:tiny, torchvision:NAME, package.module:factory."
    )


@pytest.mark.parametrize("spec", ["resnet8", "torchvision:mnasnet0_5", "users_model:small"])
def test_seed_alone_decides_the_weights(write_module: Write, spec: str) -> None:
    write_module("users_model", USERS_MODEL)
    shape = (3, 2, 2) if spec.startswith("users") else (3, 32, 32)
    torch.manual_seed(1)
    first = build(spec, seed=7, inputs=ImageSpec(*shape)).state_dict()
    torch.manual_seed(2)
    again = build(spec, seed=7, inputs=ImageSpec(*shape)).state_dict()
    other = build(spec, seed=8, inputs=ImageSpec(*shape)).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_global_generators_are_left_alone(write_module: Write) -> None:
    write_module("users_model", USERS_MODEL)
    torch.manual_seed(3)
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    build("resnet8")
    build("users_model:dropped_out", inputs=ImageSpec(3, 2, 2))
    with pytest.raises(ConfigError):
        build("users_model:no_argument")
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state


def test_users_model_is_built_with_the_number_of_classes(write_module: Write) -> None:
    write_module("users_model", USERS_MODEL)
    model = build("users_model:small", num_classes=4, inputs=ImageSpec(3, 2, 2))
    assert model(torch.zeros(6, 3, 2, 2)).shape == (6, 4)
    assert find_head(model)[0] == "3"


def test_trying_a_users_model_changes_nothing(write_module: Write) -> None:
    write_module("users_model", USERS_MODEL)
    model = build("users_model:dropped_out", inputs=ImageSpec(3, 2, 2))
    assert all(module.training for module in model.modules())
    assert int(model.get_buffer("1.num_batches_tracked")) == 0


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        ("ignores_classes", r"shape \(2, 5\); 10 classes need .*\(2, 10\)\. Use .*num_classes"),
        ("softmax_inside", r"does not return the output of its last linear layer '1'.*raw logits"),
        ("returns_pair", r"returns a tuple instead of a tensor\. Return the N x C logits"),
        ("other_size", r"fails on 3x2x2 images with RuntimeError: .*--image-size"),
        ("no_model", r"returned a str, not a torch\.nn\.Module\. Return the model itself"),
        ("no_argument", r"num_classes=10 failed with TypeError: .*def factory\(\*, num_classes"),
    ],
)
def test_refuses_models_that_cannot_classify(
    write_module: Write, factory: str, sentence: str
) -> None:
    write_module("users_model", USERS_MODEL)
    with pytest.raises(ConfigError, match=sentence):
        build(f"users_model:{factory}", inputs=ImageSpec(3, 2, 2))


def test_refuses_a_model_without_linear_layer(write_module: Write) -> None:
    write_module("users_model", USERS_MODEL)
    with pytest.raises(ConfigError, match=r"has no nn\.Linear layer.*end in an nn\.Linear"):
        build("users_model:convolutional", inputs=ImageSpec(3, 2, 2))


def test_refuses_a_factory_that_is_not_allowed() -> None:
    with pytest.raises(FactoryNotAllowedError, match="--allow-module users_model"):
        build("users_model:small", allowed_modules=())


def test_head_must_be_called_once_with_vectors() -> None:
    class PerToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits_NC: torch.Tensor = self.fc(x).mean(dim=1)
            return logits_NC

    with pytest.raises(ConfigError, match=r"'fc' with inputs of the shapes \[\(1, 3, 4\)\]"):
        forward_with_features(PerToken(), torch.zeros(1, 3, 4))


@pytest.mark.parametrize(
    ("spec", "side", "head"),
    [
        ("resnet8", 32, "fc"),
        ("resnet18", 16, "fc"),
        ("torchvision:resnet18", 32, "fc"),
        ("torchvision:vgg11_bn", 32, "classifier.6"),
        ("torchvision:mobilenet_v3_small", 32, "classifier.3"),
        ("torchvision:vit_b_32", 224, "heads.head"),
        ("torchvision:swin_t", 64, "head"),
        ("torchvision:googlenet", 64, "fc"),
    ],
)
def test_head_of_features_is_logits(spec: str, side: int, head: str) -> None:
    model = build(spec, inputs=ImageSpec(3, side, side)).eval()
    x = torch.randn(2, 3, side, side)
    with torch.no_grad():
        logits_NC, features_ND = forward_with_features(model, x)
        name, layer = find_head(model)
        assert name == head
        assert torch.equal(layer(features_ND), logits_NC)
        assert torch.equal(model(x), logits_NC)
    # Training mode must not add auxiliary logits.
    assert model.train()(x).shape == (2, 10)
    assert not layer._forward_pre_hooks


def test_gradients_flow_through_features() -> None:
    model = build("resnet8")
    logits_NC, _ = forward_with_features(model, torch.randn(2, 3, 32, 32))
    weight = model.get_parameter("conv1.weight")
    (gradient,) = torch.autograd.grad(logits_NC.sum(), weight)
    assert bool(gradient.any())


def test_torchvision_model_takes_one_channel_as_three_equal_ones() -> None:
    one = build("torchvision:resnet18", inputs=ImageSpec(1, 32, 32)).eval()
    three = build("torchvision:resnet18", inputs=ImageSpec(3, 32, 32)).eval()
    x = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        assert torch.equal(one(x), three(x.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize(
    ("name", "close"), [("resnet5", "resnet50"), ("wide_resnet_50_2", "wide_resnet50_2")]
)
def test_unknown_torchvision_model_is_answered_with_similar_names(name: str, close: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"no model '{name}'\. Did you mean .*{close}"):
        build(f"torchvision:{name}")


def test_torchvision_model_with_a_strange_name_is_answered_with_the_list() -> None:
    with pytest.raises(UnknownNameError, match=r"There are alexnet, .*wide_resnet50_2"):
        build("torchvision:@@@@")


@pytest.mark.parametrize(
    "name",
    ["fasterrcnn_resnet50_fpn", "deeplabv3_resnet50", "r3d_18", "raft_small", "quantized_resnet18"],
)
def test_refuses_models_for_other_tasks(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an image classifier .*torchvision:resnet50"):
        build(f"torchvision:{name}")


def test_refuses_images_that_the_model_does_not_take() -> None:
    with pytest.raises(ConfigError, match=r"'torchvision:densenet121' fails on 3x16x16 images"):
        build("torchvision:densenet121", inputs=ImageSpec(3, 16, 16))


def test_refuses_a_convolutional_classifier() -> None:
    with pytest.raises(ConfigError, match=r"SqueezeNet has no nn\.Linear"):
        build("torchvision:squeezenet1_0", inputs=ImageSpec(3, 64, 64))


@pytest.mark.parametrize(
    ("spec", "column"),
    [
        ("linear", Column("", ColumnType.FLOAT32, (5,))),
        ("mlp", Column("", ColumnType.INT64, (5,), num_values=9)),
        ("text:tiny", Column("", ColumnType.INT64, (5,), num_values=9)),
    ],
)
def test_models_of_columns_are_built_from_what_the_data_has(spec: str, column: Column) -> None:
    inputs = ColumnsSpec((column,))
    model = build_model(spec, num_classes=3, inputs=inputs, seed=0)
    again = build_model(spec, num_classes=3, inputs=inputs, seed=0)
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
    without = build_without_values(spec, num_classes=3, inputs=inputs)
    assert {name: tensor.shape for name, tensor in without.state_dict().items()} == {
        name: tensor.shape for name, tensor in model.state_dict().items()
    }
    measured = measure_model(without, spec, inputs=inputs)
    assert measured.training_bytes > 0
    assert not is_users_own(spec)
    assert memory_format(spec) is torch.channels_last


def test_a_model_of_images_names_those_for_other_data() -> None:
    inputs = ColumnsSpec((Column("", ColumnType.FLOAT32, (5,)),))
    with pytest.raises(ConfigError, match=r"these as they are: linear, mlp, text:tiny, or one"):
        build_model("resnet8", num_classes=3, inputs=inputs, seed=0)
