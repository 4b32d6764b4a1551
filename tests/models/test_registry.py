"""Shapes: N images, C classes, D features."""

import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from lipt.common.errors import ConfigError, UnknownNameError
from lipt.common.tensor_files import pack, specs_of
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec, InputSpec
from lipt.models.footprint import measure_model
from lipt.models.networks import torchvision_weights
from lipt.models.registry import (
    build_model,
    build_without_values,
    is_users_own,
    lay_out,
    load_model,
    memory_format,
)

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
    model = nn.Flatten()
    model.forward = lambda x: (x, x)
    return model

def other_size(*, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(13, num_classes))

def dropped_out(*, num_classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Dropout(), nn.Linear(12, num_classes))

def no_model(*, num_classes):
    return "model"

def no_argument():
    return nn.Linear(1, 1)
"""


TINY, SMALL = ImageSpec(3, 2, 2), ImageSpec(3, 32, 32)


def build(spec: str, inputs: InputSpec = SMALL, seed: int = 0) -> nn.Module:
    return build_model(
        spec, num_classes=10, inputs=inputs, seed=seed, allowed_modules=("users_model",)
    )


def test_unknown_model_is_refused_with_the_list_of_models() -> None:
    with pytest.raises(UnknownNameError) as caught:
        build("resnet19")
    assert str(caught.value) == (
        "there is no model 'resnet19'. Did you mean resnet8 or resnet18? There are: resnet8, "
        "resnet18, wrn28_10, convnet, linear, mlp, text:tiny, text:causal, causal:FOLDER, "
        "torchvision:NAME, package.module:factory."
    )


@pytest.mark.parametrize("spec", ["torchvision:mnasnet0_5", "users_model:small"])
def test_seed_alone_decides_the_weights(write_module: Write, spec: str) -> None:
    write_module("users_model", USERS_MODEL)
    inputs = TINY if spec.startswith("users") else SMALL
    torch.manual_seed(1)
    first = build(spec, inputs, 7).state_dict()
    torch.manual_seed(2)
    again, other = build(spec, inputs, 7).state_dict(), build(spec, inputs, 8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_global_generators_are_unchanged(write_module: Write) -> None:
    write_module("users_model", USERS_MODEL)
    torch.manual_seed(3)
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    build("resnet8")
    build("users_model:dropped_out", TINY)
    with pytest.raises(ConfigError):
        build("users_model:no_argument")
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        ("ignores_classes", r"the shape \(2, 5\)\. .*, here 10, .*num_classes"),
        ("softmax_inside", r"does not return the output of its linear layer '1'.*raw logits"),
        ("returns_pair", r"to a tuple\. Return N x C .* logits"),
        ("other_size", r"fails on 3x2x2 images with RuntimeError: .*--image-size"),
        ("no_model", r"returned a str, not a torch\.nn\.Module\. Return one"),
        ("no_argument", r"num_classes=10\) failed with TypeError: .*def factory\(\*, num_classes"),
    ],
)
def test_refuses_models_that_fail(write_module: Write, factory: str, sentence: str) -> None:
    write_module("users_model", USERS_MODEL)
    with pytest.raises(ConfigError, match=sentence):
        build(f"users_model:{factory}", TINY)


def test_every_default_weight_file_of_torchvision_has_its_hash_in_its_name() -> None:
    names = torchvision.models.list_models(module=torchvision.models)
    urls = [torchvision_weights(name) for name in names]
    assert all(re.search(r"/[^/]+-[0-9a-f]{8,}\.pth$", url) for url in urls)
    assert torchvision_weights("resnet18").endswith("/resnet18-f37072fd.pth")


def test_torchvision_model_repeats_a_single_channel() -> None:
    one = build("torchvision:resnet18", ImageSpec(1, 32, 32)).eval()
    three = build("torchvision:resnet18").eval()
    x = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        assert torch.equal(one(x), three(x.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize(
    ("spec", "column"),
    [
        ("linear", Column("", ColumnType.FLOAT32, (5,))),
        ("mlp", Column("", ColumnType.INT64, (5,), num_values=9)),
        ("text:tiny", Column("", ColumnType.INT64, (5,), num_values=9)),
        ("text:causal", Column("", ColumnType.INT64, (5,), num_values=10)),
    ],
)
def test_models_of_columns_fit_the_columns_of_the_data(spec: str, column: Column) -> None:
    inputs = ColumnsSpec((column,))
    with pytest.raises(ConfigError, match=r"data has .*\[5\]\. Choose linear, mlp, text"):
        build("resnet8", inputs)
    model, again = build(spec, inputs), build(spec, inputs)
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
    without = build_without_values(spec, num_classes=10, inputs=inputs)
    assert specs_of(without.state_dict()) == specs_of(model.state_dict())
    assert measure_model(without, spec, inputs=inputs).training_bytes > 0
    assert not is_users_own(spec)
    assert memory_format(spec) is torch.channels_last


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("resnet5", UnknownNameError, r"no image classifier 'resnet5'\. Did you mean .*resnet50"),
        ("@@@@", UnknownNameError, r"There are: alexnet, .*wide_resnet50_2"),
        ("raft_small", UnknownNameError, "has no image classifier 'raft_small'"),
        ("densenet121", ConfigError, r"'torchvision:densenet121' fails on 3x16x16 images"),
        ("squeezenet1_0", ConfigError, r"SqueezeNet has no nn\.Linear.* Let it end in one"),
    ],
)
@pytest.mark.parametrize("values", [True, False])
def test_models_of_torchvision_that_do_not_fit_are_refused(
    name: str, error: type[Exception], words: str, values: bool
) -> None:
    side = 16 if name == "densenet121" else 64
    made = partial(build_model, seed=0) if values else build_without_values
    with pytest.raises(error, match=words):
        made(f"torchvision:{name}", num_classes=10, inputs=ImageSpec(3, side, side))


def test_memory_layout_changes_no_value() -> None:
    model = build("resnet8")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert memory_format("mine:model") is torch.contiguous_format
    laid_out = lay_out(model, "resnet8", torch.device("cpu"))
    assert laid_out is model
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        if tensor.ndim == 4:
            assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_a_loaded_model_has_the_file_s_weights_in_evaluation_mode(tmp_path: Path) -> None:
    trained = build("resnet8", seed=7).state_dict()
    file, device = tmp_path / "w.safetensors", torch.device("cpu")
    file.write_bytes(pack(trained))
    model = load_model(
        "resnet8", file, num_classes=10, inputs=SMALL, device=device, max_bytes=2**24
    )
    assert not model.training
    assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())
