"""Built-in models of images and tables: residual networks, one for distillation, dense ones.

Shapes: N images, B examples, C classes, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError, UnknownNameError
from lipt.common.text import did_you_mean
from lipt.data.inputs.specs import Column, ColumnsSpec, ImageSpec, InputSpec


def initialize(network: nn.Module) -> None:
    """Draw the weights of convolutions, batch norms and linear layers, in place.

    Convolutions are normal with variance 2 / fan_out (He et al. 2015, arXiv:1502.01852), batch
    norms the identity. Linear layers keep PyTorch's weights, with zero bias. The caller seeds the
    global CPU generator.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


# ResNet for small images: a 3x3 stem with stride 1, without max-pooling. Every stage after the
# first halves the image, so 8x8 digits work as well as 32x32 photographs.
#
# Source: He et al. 2015, "Deep Residual Learning for Image Recognition" (arXiv:1512.03385); with
# the stem and the widths 64-128-256-512 that are common for CIFAR.


def _stages(
    block: Callable[..., nn.Module], channels: int, widths: Sequence[int], blocks_per_stage: int
) -> nn.Sequential:
    blocks: list[nn.Module] = []
    for stage, width in enumerate(widths):
        for number in range(blocks_per_stage):
            blocks.append(block(channels, width, stride=2 if stage > 0 and number == 0 else 1))
            channels = width
    return nn.Sequential(*blocks)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is 1x1 where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """Images to logits: a stem, stages of basic blocks, the global average, a linear head `fc`."""

    def __init__(
        self, widths: Sequence[int], blocks_per_stage: int, *, num_classes: int, image: ImageSpec
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(image.channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.blocks = _stages(BasicBlock, widths[0], widths, blocks_per_stage)
        self.fc = nn.Linear(widths[-1], num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.blocks(torch.relu(self.bn1(self.conv1(x))))
        logits_NC: Tensor = self.fc(out.mean(dim=(2, 3)))
        return logits_NC


# 11,173,962 parameters for 10 classes of RGB images.
resnet18 = partial(ResNet, (64, 128, 256, 512), 2)
# For CPUs: three stages of one block.
resnet8 = partial(ResNet, (16, 32, 64), 1)


# Source: Zagoruyko & Komodakis 2016, "Wide Residual Networks" (arXiv:1605.07146), without dropout
# as in their figures for flipped and cropped images.


class PreActivationBlock(nn.Module):
    """Batch norm and ReLU before each of two 3x3 convolutions, around a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.projection: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.projection = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = torch.relu(self.bn1(x))
        # A projection sees the activated input, an identity the raw one.
        shortcut = x if self.projection is None else self.projection(activated)
        out = self.conv2(torch.relu(self.bn2(self.conv1(activated))))
        total: Tensor = out + shortcut
        return total


class WideResNet(nn.Module):
    """WRN-28-10: three stages of blocks, the global average, and a linear head `fc`."""

    def __init__(self, *, num_classes: int, image: ImageSpec) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(image.channels, 16, 3, padding=1, bias=False)
        self.blocks = _stages(PreActivationBlock, 16, (160, 320, 640), 4)
        self.bn = nn.BatchNorm2d(640)
        self.fc = nn.Linear(640, num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn(self.blocks(self.conv1(x))))
        logits_NC: Tensor = self.fc(out.mean(dim=(2, 3)))
        return logits_NC


# ConvNet for data distillation: blocks of 3x3 convolution, instance norm, ReLU, and 2x2 average
# pooling where the image is large enough. Outputs do not depend on other examples of the batch, so
# a class gradient is the mean of its examples' gradients.
#
# Source: Gidaris and Komodakis 2018, "Dynamic Few-Shot Visual Learning without Forgetting"
# (arXiv:1804.09458); in distillation since Zhao et al. 2021 (arXiv:2006.05929).

_WIDTH, _NUM_BLOCKS = 64, 3


class ConvNet(nn.Module):
    """Three blocks of 64 channels and a linear head `fc`; 86,090 parameters for CIFAR's images."""

    def __init__(self, *, num_classes: int, image: ImageSpec) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        channels, height, width = image.shape
        for _ in range(_NUM_BLOCKS):
            blocks += [
                nn.Conv2d(channels, _WIDTH, 3, padding=1, bias=False),
                # Groups of one channel are instance norm.
                nn.GroupNorm(_WIDTH, _WIDTH),
                nn.ReLU(),
            ]
            channels = _WIDTH
            # Normalization would set a single-pixel channel to 0.
            if min(height, width) >= 4:
                blocks.append(nn.AvgPool2d(2))
                height, width = height // 2, width // 2
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels * height * width, num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        logits_NC: Tensor = self.fc(torch.flatten(self.blocks(x), 1))
        return logits_NC


# Linear and MLP, for tables and features. Floating-point columns are flattened; categories with a
# known range are embedded, one embedding for each column.

_HIDDEN_WIDTH = 256
_EMBEDDING_WIDTH = 16


class ConcatenatedInputs(nn.Module):
    """Concatenates inputs into one row of numbers for each example."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__()
        self._columns = inputs.columns if isinstance(inputs, ColumnsSpec) else ()
        # Keyed by position: a column's name may be missing, or invalid for a module.
        self.embeddings = nn.ModuleDict()
        widths = []
        for place, column in enumerate(self._columns):
            width = math.prod(column.shape)
            if not column.type.dtype.is_floating_point:
                self.embeddings[str(place)] = nn.Embedding(_num_values(column), _EMBEDDING_WIDTH)
                width *= _EMBEDDING_WIDTH
            widths.append(width)
        self.width = sum(widths) if isinstance(inputs, ColumnsSpec) else math.prod(inputs.shape)

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        if not self._columns:
            return given[0].flatten(1)
        parts = []
        for place, column in enumerate(self._columns):
            values = given[0] if given else named[column.name]
            if str(place) in self.embeddings:
                values = self.embeddings[str(place)](values.long())
            parts.append(values.float().reshape(len(values), -1))
        return torch.cat(parts, dim=1)


class Dense(nn.Module):
    """`num_hidden` layers of one width with ReLU, and a linear head `fc`."""

    def __init__(self, *, inputs: InputSpec, num_classes: int, num_hidden: int) -> None:
        super().__init__()
        self.inputs = ConcatenatedInputs(inputs)
        width = self.inputs.width
        hidden: list[nn.Module] = []
        for _ in range(num_hidden):
            hidden += [nn.Linear(width, _HIDDEN_WIDTH), nn.ReLU()]
            width = _HIDDEN_WIDTH
        self.hidden = nn.Sequential(*hidden)
        self.fc = nn.Linear(width, num_classes)
        initialize(self)

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        logits_BC: Tensor = self.fc(self.hidden(self.inputs(*given, **named)))
        return logits_BC


linear = partial(Dense, num_hidden=0)
mlp = partial(Dense, num_hidden=2)


def _num_values(column: Column) -> int:
    if column.type.value == "bool":
        return 2
    if not column.num_values:
        raise ConfigError(
            f"linear and mlp cannot take the column {str(column)!r}: its numbers have no known "
            "range. Give them as floats, or take a model of your own."
        )
    return column.num_values


def token_column(inputs: InputSpec, model: str) -> Column:
    """The column of tokens; ConfigError for other inputs of the model."""
    if isinstance(inputs, ColumnsSpec) and len(inputs.columns) == 1:
        (column,) = inputs.columns
        if len(column.shape) == 1 and column.num_values:
            return column
    raise ConfigError(
        f"the model {model} cannot take {inputs}, only tokens. Open texts, such as "
        "'csv:PATH?text=COLUMN', or choose another model."
    )


def predicts_tokens(inputs: InputSpec, num_outputs: int) -> bool:
    """Whether the outputs are the tokens of a text, so those of each next one."""
    if not isinstance(inputs, ColumnsSpec) or len(inputs.columns) != 1:
        return False
    (column,) = inputs.columns
    return len(column.shape) == 1 and column.num_values == num_outputs


PREFIX = "torchvision:"

_WITH_PARTS = {"googlenet", "inception_v3"}


def build_torchvision(name: str, *, num_classes: int, in_channels: int) -> nn.Module:
    """`torchvision.models.NAME` with random weights; grayscale images get three equal channels."""
    models = _torchvision_with(name)
    # The defaults add auxiliary outputs, or warn of a change.
    parts = {"aux_logits": False, "init_weights": True} if name in _WITH_PARTS else {}
    model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **parts)
    if in_channels == 1:
        model.register_forward_pre_hook(_repeat_channel)
    return model


def torchvision_weights(name: str) -> str:
    url: str = _torchvision_with(name).get_model_weights(name).DEFAULT.url
    return url


def _torchvision_with(name: str) -> Any:
    """Torchvision's models; UnknownNameError if NAME is not among its classifiers."""
    from torchvision import models  # noqa: PLC0415 - slow to import, and not always needed

    classifiers = models.list_models(module=models)
    if name not in classifiers:
        meant = did_you_mean(name, classifiers) or f" There are: {', '.join(classifiers)}."
        raise UnknownNameError(f"torchvision has no image classifier {name!r}.{meant}")
    return models


def _repeat_channel(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    images, *rest = args
    return images.expand(-1, 3, -1, -1), *rest
