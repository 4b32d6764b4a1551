"""Shapes: N images, C classes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.common.inputs.specs import (
    Column,
    ColumnsSpec,
    ColumnType,
    ImageSpec,
    InputSpec,
    call_model,
)
from lipt.common.models import build_model, find_head
from lipt.common.models.models import BasicBlock, PreActivationBlock, TextTransformer, linear, mlp
from lipt.common.models.registry import build_without_values


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


def test_convnet_halves_images_and_looks_at_each_alone() -> None:
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


def test_convolutions_start_with_variance_two_over_fan_out() -> None:
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
def test_every_value_of_an_example_goes_into_the_first_layer(
    build: Callable[..., nn.Module], inputs: InputSpec, width: int
) -> None:
    model = build(num_classes=7, inputs=inputs)
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    assert first.in_features == width
    assert find_head(model)[0] == "fc"
    for device in ("cpu", "meta"):
        assert call_model(model.to(device), inputs.zeros(5, device)).shape == (5, 7)
    column = Column("age", ColumnType.INT64, (1,))
    with pytest.raises(ConfigError, match=r"cannot take the column 'age int64\[1\]'.* as float32"):
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


def test_logits_of_a_text_do_not_depend_on_its_padding_or_batch() -> None:
    model = build_text()
    assert model(tokens(12, 3)).shape == (2, 3)
    assert torch.equal(call_model(model, {"words": tokens(5)}), model(tokens(5)))
    assert find_head(model)[0] == "fc"
    padded_BL = tokens(5, 5)
    torch.testing.assert_close(model(padded_BL), model(padded_BL[:, :5]))
    # Nor does what stands beside a text in its batch.
    torch.testing.assert_close(model(tokens(5, 12))[:1], model(tokens(5)))
    assert model.to("meta")(torch.zeros(4, 12, dtype=torch.int64, device="meta")).shape == (4, 3)


def test_training_and_evaluation_have_equal_bits_and_a_text_without_tokens_finite_ones() -> None:
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
