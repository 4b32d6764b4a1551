from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec, InputSpec, call_model
from lipt.models.head import (
    ALL_BUT_HEAD,
    evaluation_mode,
    find_head,
    forward_with_features,
    freeze,
    frozen_names,
    head_names,
)
from lipt.models.networks import BasicBlock, PreActivationBlock, linear, mlp
from lipt.models.registry import build_model, build_without_values
from lipt.models.transformers import TextTransformer
from tests.sentences import Reader


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        # As published for 10 classes of CIFAR.
        ("resnet18", 11_173_962),
        ("wrn28_10", 36_479_194),
        # Three convolutions, an instance norm's scale and shift per channel, and the head.
        ("convnet", 27 * 64 + 2 * 576 * 64 + 3 * 2 * 64 + 1024 * 10 + 10),
    ],
)
def test_models_have_the_known_number_of_parameters(name: str, num_parameters: int) -> None:
    model = build_without_values(name, num_classes=10, inputs=ImageSpec(3, 32, 32))
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


def test_convnet_halves_images_and_treats_each_alone() -> None:
    # 8 x 8 pixels are halved twice: a third time would leave a single one of each channel.
    model = build_model("convnet", num_classes=3, inputs=ImageSpec(1, 8, 8), seed=0)
    assert find_head(model)[1].in_features == 2 * 2 * 64
    images_NCHW = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(images_NCHW)[:1], model(images_NCHW[:1]))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        # A ReLU of x, plus x, and a ReLU.
        (BasicBlock(1, 1, stride=1), [0.0, 4.0]),
        # Two ReLUs of x, plus x.
        (PreActivationBlock(1, 1, stride=1), [-3.0, 4.0]),
    ],
)
def test_blocks_add_their_input_before_or_after_the_last_relu(
    block: BasicBlock | PreActivationBlock, expected: list[float]
) -> None:
    block.eval()
    for convolution, norm in ((block.conv1, block.bn1), (block.conv2, block.bn2)):
        nn.init.dirac_(convolution.weight)
        norm.eps = 1e-12  # vanishes beside the variance of 1
    assert block(torch.tensor([-3.0, 2.0]).reshape(1, 1, 1, 2)).flatten().tolist() == expected


def test_convolutions_are_initialized_with_variance_2_over_fan_out() -> None:
    model = build_model("resnet18", num_classes=10, inputs=ImageSpec(3, 32, 32), seed=0)
    weight = model.get_parameter("blocks.7.conv2.weight").detach()
    # 2.4 million draws: the deviation's own error is far below 1%.
    assert float(weight.std()) == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert float(weight.mean()) == pytest.approx(0.0, abs=1e-4)
    assert not model.get_parameter("fc.bias").any()


NUMBERS = Column("numbers", ColumnType.FLOAT32, (2, 3), standardized=True)
CATEGORIES = Column("categories", ColumnType.INT64, (4,), num_values=50)
FLAG = Column("flag", ColumnType.BOOL, ())
ALONE = Column("", ColumnType.FLOAT16, (3,))


@pytest.mark.parametrize("build", [linear, mlp])
@pytest.mark.parametrize(
    ("inputs", "width"),
    [
        (ColumnsSpec((NUMBERS, CATEGORIES, FLAG)), 6 + 4 * 16 + 16),
        (ColumnsSpec((ALONE,)), 3),
        (ImageSpec(1, 4, 5), 20),
    ],
)
def test_the_first_layer_uses_every_value_of_an_example(
    build: Callable[..., nn.Module], inputs: InputSpec, width: int
) -> None:
    model = build(num_classes=7, inputs=inputs)
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    assert first.in_features == width
    assert find_head(model)[0] == "fc"
    for device in ("cpu", "meta"):
        assert call_model(model.to(device), inputs.zeros(5, device)).shape == (5, 7)
    column = Column("age", ColumnType.INT64, (1,))
    with pytest.raises(ConfigError, match=r"cannot take the column 'age int64\[1\]'.* as floats"):
        build(num_classes=2, inputs=ColumnsSpec((column,)))


TOKENS = Column("", ColumnType.INT64, (12,), num_values=100)


def build_text() -> TextTransformer:
    torch.manual_seed(0)
    return TextTransformer(num_classes=3, inputs=ColumnsSpec((TOKENS,)))


def tokens(*lengths: int) -> Tensor:
    tokens_BL = torch.randint(
        1, 100, (len(lengths), 12), generator=torch.Generator().manual_seed(0)
    )
    return tokens_BL * (torch.arange(12) < torch.tensor(lengths)[:, None])


def test_logits_of_a_text_do_not_depend_on_its_padding() -> None:
    model = build_text()
    assert model(tokens(12, 3)).shape == (2, 3)
    assert torch.equal(call_model(model, {"words": tokens(5)}), model(tokens(5)))
    assert find_head(model)[0] == "fc"
    padded_BL = tokens(5, 5)
    torch.testing.assert_close(model(padded_BL), model(padded_BL[:, :5]))
    # Nor does what stands beside a text in its batch.
    torch.testing.assert_close(model(tokens(5, 12))[:1], model(tokens(5)))
    assert model.to("meta")(torch.zeros(4, 12, dtype=torch.int64, device="meta")).shape == (4, 3)
    model, text_BL = build_text(), tokens(12, 7, 3, 0)
    training = model.train()(text_BL)
    training.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(it is not None and bool(it.isfinite().all()) for it in (training, *gradients))
    with torch.inference_mode():
        assert torch.equal(training, model.eval()(text_BL))


@pytest.mark.parametrize(
    "inputs",
    [
        ImageSpec(1, 8, 8),
        ColumnsSpec((Column("", ColumnType.INT64, (12,)),)),
        ColumnsSpec((Column("a", ColumnType.INT64, (2,), num_values=9), FLAG)),
    ],
)
def test_inputs_other_than_tokens_are_refused(inputs: InputSpec) -> None:
    with pytest.raises(ConfigError, match=r"text:tiny cannot take .*, only tokens"):
        TextTransformer(num_classes=2, inputs=inputs)


WORDS = Column("tokens", ColumnType.INT64, (5,), num_values=40)
FIGURES = Column("figures", ColumnType.FLOAT32, (3,))
SPEC = ColumnsSpec((WORDS, FIGURES))


class Wrapped(Reader):
    def forward(self, tokens: Tensor, figures: Tensor) -> Any:
        return SimpleNamespace(logits=super().forward(tokens, figures), loss=None)


def wrapped(*, num_classes: int) -> nn.Module:
    return Wrapped(num_classes)


def silent(*, num_classes: int) -> nn.Module:
    return nn.Linear(3, num_classes)


def built(name: str, inputs: ColumnsSpec = SPEC) -> nn.Module:
    module = "tests.models.test_networks"
    return build_model(
        f"{module}:{name}", num_classes=4, inputs=inputs, seed=0, allowed_modules=[module]
    )


def test_an_output_object_with_logits_is_accepted() -> None:
    model = built("wrapped").eval()
    inputs = {"tokens": torch.tensor([[1, 2, 3, 4, 0]] * 2), "figures": torch.rand(2, 3)}
    logits_BC, features_BD = forward_with_features(model, inputs)
    assert torch.equal(logits_BC, call_model(model, inputs))
    assert torch.equal(logits_BC, find_head(model)[1](features_BD))


def test_models_that_do_not_fit_the_data_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'' with the shapes \[\(1, 3, 4\)\]"):
        forward_with_features(nn.Linear(4, 2), torch.zeros(1, 3, 4))
    with pytest.raises(ConfigError, match=r"figures float32\[3\] with TypeError.*keywords"):
        built("silent")
    doubles = ColumnsSpec((Column("", ColumnType.FLOAT64, (3,)),))
    with pytest.raises(ConfigError, match="or float32 columns"):
        built("silent", doubles)


@pytest.mark.parametrize(
    ("spec", "head"),
    [
        ("resnet8", "fc"),
        ("wrn28_10", "fc"),
        ("convnet", "fc"),
        ("torchvision:vgg11_bn", "classifier.6"),
        ("torchvision:swin_t", "head"),
        ("torchvision:googlenet", "fc"),
    ],
)
def test_the_head_maps_features_to_logits(spec: str, head: str) -> None:
    shape = (3, 64, 64) if spec.startswith("torchvision") else (1, 8, 8)
    model = build_model(spec, num_classes=10, inputs=ImageSpec(*shape), seed=0)
    assert model.training
    x = torch.randn(2, *shape)
    # Training mode must not add auxiliary logits.
    assert model(x).shape == (2, 10)
    with evaluation_mode(model), torch.no_grad():
        logits_NC, features_ND = forward_with_features(model, x)
        name, layer = find_head(model)
        assert name == head
        assert torch.equal(layer(features_ND), logits_NC)
        assert torch.equal(model(x), logits_NC)
    assert not layer._forward_pre_hooks


def normalized() -> nn.Sequential:
    """A linear layer, statistics without parameters, a scaled batch norm, and the head."""
    return nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4), nn.Linear(4, 2)
    )


def test_globs_freeze_parameters_and_the_statistics_of_frozen_layers() -> None:
    statistics = {"running_mean", "running_var", "num_batches_tracked"}
    model = normalized()
    assert frozen_names(model, ["2.*"]) == {f"2.{name}" for name in {"weight", "bias"} | statistics}
    # Its bias is trained, so its statistics go on as well.
    assert frozen_names(model, ["2.w*"]) == {"2.weight"}
    # Of two patterns one matches each; of a layer without parameters the statistics themselves.
    assert frozen_names(model, ["2.weight", "2.bias"]) == frozen_names(model, ["2.*"])
    assert frozen_names(model, ["1.*"]) == {f"1.{name}" for name in statistics}
    rest = model.state_dict().keys() - frozen_names(model, [ALL_BUT_HEAD])
    assert rest == head_names(model) == {"3.weight", "3.bias"}
    # A tensor of two names is frozen under both.
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    tied[1].weight = tied[0].weight
    assert frozen_names(tied, ["1.*"]) == {"0.weight", "1.weight"}


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


def test_patterns_that_freeze_nothing_or_everything_are_refused() -> None:
    model = build_model("resnet8", num_classes=10, inputs=ImageSpec(1, 8, 8), seed=0)
    assert frozen_names(model, ()) == frozenset()
    words = r"'layer9.*' matches none of the model's 29 .*: conv1.weight, b"
    with pytest.raises(ConfigError, match=words):
        frozen_names(model, ["conv1.*", "layer9.*"])
    with pytest.raises(ConfigError, match="freezes all 29 parameters"):
        frozen_names(model, [ALL_BUT_HEAD, "fc.*"])
