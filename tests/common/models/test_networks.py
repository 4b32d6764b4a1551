"""Shapes: N images, C classes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model, find_head, forward_with_features
from lipt.common.models.models import BasicBlock, PreActivationBlock


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def conv(inputs: int, outputs: int, side: int = 3) -> int:
    return inputs * outputs * side * side


def batch_norm(channels: int) -> int:
    return 2 * channels


def basic_block(inputs: int, outputs: int) -> int:
    body = conv(inputs, outputs) + conv(outputs, outputs) + 2 * batch_norm(outputs)
    return body + (conv(inputs, outputs, 1) + batch_norm(outputs) if inputs != outputs else 0)


def pre_activation_block(inputs: int, outputs: int) -> int:
    body = batch_norm(inputs) + conv(inputs, outputs) + batch_norm(outputs) + conv(outputs, outputs)
    return body + (conv(inputs, outputs, 1) if inputs != outputs else 0)


def test_resnet18_has_the_known_number_of_parameters() -> None:
    expected = conv(3, 64) + batch_norm(64)
    for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
        expected += basic_block(inputs, outputs) + basic_block(outputs, outputs)
    expected += 512 * 10 + 10
    assert expected == 11_173_962
    assert (
        count(build_model("resnet18", num_classes=10, inputs=ImageSpec(3, 32, 32), seed=0))
        == expected
    )


def test_wrn28_10_has_the_known_number_of_parameters() -> None:
    expected = conv(3, 16)
    for inputs, outputs in ((16, 160), (160, 320), (320, 640)):
        expected += pre_activation_block(inputs, outputs) + 3 * pre_activation_block(
            outputs, outputs
        )
    expected += batch_norm(640) + 640 * 10 + 10
    assert expected == 36_479_194
    with torch.device("meta"):
        from lipt.common.models.models import wrn28_10

        assert count(wrn28_10(num_classes=10, in_channels=3)) == expected


def test_resnet8_has_one_block_per_stage() -> None:
    expected = conv(1, 16) + batch_norm(16)
    expected += basic_block(16, 16) + basic_block(16, 32) + basic_block(32, 64) + 64 * 10 + 10
    assert (
        count(build_model("resnet8", num_classes=10, inputs=ImageSpec(1, 8, 8), seed=0)) == expected
    )


def test_convnet_has_three_blocks_and_a_head_on_all_that_is_left() -> None:
    # Each block has an instance norm's scale and shift per channel, and halves the image.
    expected = conv(3, 64) + 2 * conv(64, 64) + 3 * 2 * 64 + 4 * 4 * 64 * 10 + 10
    assert expected == 86_090
    inputs = ImageSpec(3, 32, 32)
    assert count(build_model("convnet", num_classes=10, inputs=inputs, seed=0)) == expected
    # 8 x 8 pixels are halved twice: a third time would leave a single one of each channel.
    small = build_model("convnet", num_classes=10, inputs=ImageSpec(1, 8, 8), seed=0)
    assert find_head(small)[1].in_features == 2 * 2 * 64


def test_convnet_looks_at_each_image_alone() -> None:
    model = build_model("convnet", num_classes=3, inputs=ImageSpec(1, 8, 8), seed=0)
    images_NCHW = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(images_NCHW)[:1], model(images_NCHW[:1]))


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "convnet"])
@pytest.mark.parametrize("image_shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (3, 33, 47)])
@pytest.mark.parametrize("num_classes", [2, 7])
def test_maps_images_to_logits(
    name: str, image_shape: tuple[int, int, int], num_classes: int
) -> None:
    model = build_model(name, num_classes=num_classes, inputs=ImageSpec(*image_shape), seed=0)
    assert model.training
    logits_NC = model(torch.randn(3, *image_shape))
    assert logits_NC.shape == (3, num_classes)
    assert bool(logits_NC.isfinite().all())


def test_wrn28_10_maps_images_to_logits() -> None:
    model = build_model("wrn28_10", num_classes=5, inputs=ImageSpec(1, 8, 8), seed=0).eval()
    with torch.no_grad():
        logits_NC, features_ND = forward_with_features(model, torch.randn(2, 1, 8, 8))
    assert logits_NC.shape == (2, 5)
    assert features_ND.shape == (2, 640)
    assert find_head(model)[0] == "fc"


def outputs_of_the_identity(block: BasicBlock | PreActivationBlock) -> list[float]:
    """What a block whose convolutions change nothing makes of -3 and 2."""
    for convolution, norm in ((block.conv1, block.bn1), (block.conv2, block.bn2)):
        nn.init.dirac_(convolution.weight)
        norm.eps = 1e-12  # vanishes beside the variance of 1
    outputs: list[float] = block(torch.tensor([-3.0, 2.0]).reshape(1, 1, 1, 2)).flatten().tolist()
    return outputs


def test_basic_block_adds_its_input_before_the_last_relu() -> None:
    # With identity convolutions and batch norms: relu(relu(x) + x).
    block = BasicBlock(1, 1, stride=1).eval()
    assert outputs_of_the_identity(block) == [0.0, 4.0]


def test_pre_activation_block_keeps_its_input_raw() -> None:
    # relu(relu(x)) + x, without a ReLU after the sum.
    block = PreActivationBlock(1, 1, stride=1).eval()
    assert outputs_of_the_identity(block) == [-3.0, 4.0]


def test_convolutions_start_with_variance_two_over_fan_out() -> None:
    model = build_model("resnet18", num_classes=10, inputs=ImageSpec(3, 32, 32), seed=0)
    weight = model.get_parameter("blocks.7.conv2.weight").detach()
    # 2.4 million draws: the deviation's own error is far below 1%.
    assert float(weight.std()) == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert float(weight.mean()) == pytest.approx(0.0, abs=1e-4)
    assert not model.get_parameter("fc.bias").any()
