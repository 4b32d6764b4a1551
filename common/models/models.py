"""Built-in models: residual networks, a network for distillation, dense and text models.

Shapes: N images, B examples or texts, C classes, D features.
"""

# ruff: noqa: D102 - a network's inputs and outputs are in its class's docstring

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError, UnknownNameError
from lipt.common.inputs.specs import Column, ColumnsSpec, ImageSpec, InputSpec


def initialize(network: nn.Module) -> None:
    """Draw the weights of convolutions, batch norms and linear layers, in place.

    Convolutions: normal with variance 2 / fan_out (He et al. 2015, arXiv:1502.01852).
    Batch norms: the identity. Linear layers: PyTorch's own draw, with a zero bias.
    Randomness comes from the global CPU generator, which the caller seeds.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


# ResNet for small images: a 3x3 stem with stride 1 and no max-pooling. Every stage after the first
# halves the image, and the global average takes the rest, so 8x8 digits work as well as 32x32
# photographs.
#
# Source: He et al. 2015, "Deep Residual Learning for Image Recognition" (arXiv:1512.03385);
# the stem and the widths 64-128-256-512 for CIFAR are those common in the field.


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
        self, widths: Sequence[int], blocks_per_stage: int, *, in_channels: int, num_classes: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        channels = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks_per_stage):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(BasicBlock(channels, width, stride=stride))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.blocks(torch.relu(self.bn1(self.conv1(x))))
        features_ND = out.mean(dim=(2, 3))
        logits_NC: Tensor = self.fc(features_ND)
        return logits_NC


def resnet18(*, num_classes: int, image: ImageSpec) -> nn.Module:
    """ResNet-18 for CIFAR: 11,173,962 parameters for 10 classes of RGB images."""
    return ResNet((64, 128, 256, 512), 2, in_channels=image.channels, num_classes=num_classes)


def resnet8(*, num_classes: int, image: ImageSpec) -> nn.Module:
    """A net that CPUs can train: three stages of one block, 16, 32 and 64 channels wide."""
    return ResNet((16, 32, 64), 1, in_channels=image.channels, num_classes=num_classes)


# WRN-28-10, the wide residual network of the CIFAR-100 results.
#
# Source: Zagoruyko & Komodakis 2016, "Wide Residual Networks" (arXiv:1605.07146).
# Without their dropout: it is off in their CIFAR figures for flipped and cropped images.


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
    """Three stages of pre-activation blocks, the global average, and a linear head `fc`."""

    def __init__(self, *, depth: int, width: int, in_channels: int, num_classes: int) -> None:
        super().__init__()
        # depth = 1 stem + 3 stages x 2 convolutions a block + 3 projections.
        blocks_per_stage = (depth - 4) // 6
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        channels = 16
        for stage, out_channels in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range(blocks_per_stage):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(PreActivationBlock(channels, out_channels, stride=stride))
                channels = out_channels
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn(self.blocks(self.conv1(x))))
        features_ND = out.mean(dim=(2, 3))
        logits_NC: Tensor = self.fc(features_ND)
        return logits_NC


def wrn28_10(*, num_classes: int, image: ImageSpec) -> nn.Module:
    """WRN-28-10: 36,479,194 parameters for 10 classes of RGB images."""
    return WideResNet(depth=28, width=10, in_channels=image.channels, num_classes=num_classes)


# ConvNet for data distillation: blocks of a 3x3 convolution, instance norm, ReLU, and an average
# over 2x2 while there is something to halve. No example's output depends on the others of its
# batch, so that the gradient of a class is the mean of its examples' gradients.
#
# Source: Gidaris and Komodakis 2018, "Dynamic Few-Shot Visual Learning without Forgetting"
# (arXiv:1804.09458); in distillation since Zhao et al. 2021 (arXiv:2006.05929).

_WIDTH, _NUM_BLOCKS = 64, 3


class ConvNet(nn.Module):
    """Three blocks of 64 channels, and a linear head `fc` on the rest of the image.

    86,090 parameters for CIFAR's images.
    """

    def __init__(self, *, num_classes: int, image: ImageSpec) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        channels, height, width = image.shape
        for _ in range(_NUM_BLOCKS):
            blocks += [
                nn.Conv2d(channels, _WIDTH, 3, padding=1, bias=False),
                # A group of each channel is instance norm.
                nn.GroupNorm(_WIDTH, _WIDTH),
                nn.ReLU(),
            ]
            channels = _WIDTH
            # A channel of a single pixel would be normalized to nothing.
            if min(height, width) >= 4:
                blocks.append(nn.AvgPool2d(2))
                height, width = height // 2, width // 2
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels * height * width, num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        logits_NC: Tensor = self.fc(torch.flatten(self.blocks(x), 1))
        return logits_NC


# Linear and MLP: for tables and for features that another model has made. Every column of
# floating-point numbers is flattened; every whole number of a known range, such as a category's, is
# a row of an embedding that its column's places share.
#
# Shapes: W values of an example side by side.

_HIDDEN_WIDTH = 256
_EMBEDDING_WIDTH = 16


class SideBySide(nn.Module):
    """Inputs as one row of numbers for each example."""

    def __init__(self, inputs: InputSpec) -> None:
        """Make an embedding for each column of whole numbers."""
        super().__init__()
        self._columns = inputs.columns if isinstance(inputs, ColumnsSpec) else ()
        # By place: a column may have no name, or one that no module can have.
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
    """Layers of one width with ReLU between, and a linear head `fc`; none of them for a line."""

    def __init__(self, inputs: InputSpec, *, num_classes: int, num_hidden: int) -> None:
        super().__init__()
        self.inputs = SideBySide(inputs)
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


def linear(*, num_classes: int, inputs: InputSpec) -> nn.Module:
    """Logistic regression."""
    return Dense(inputs, num_classes=num_classes, num_hidden=0)


def mlp(*, num_classes: int, inputs: InputSpec) -> nn.Module:
    """Two hidden layers of 256."""
    return Dense(inputs, num_classes=num_classes, num_hidden=2)


def _num_values(column: Column) -> int:
    if column.type.value == "bool":
        return 2
    if not column.num_values:
        raise ConfigError(
            f"the models linear and mlp cannot take the column {str(column)!r}: the range of its "
            "whole numbers is not known. Give them as float32, or take a model of your own."
        )
    return column.num_values


# Text transformer: an encoder small enough for CPUs, over tokens of which 0 is padding. Layer norms
# come before each part (Xiong et al. 2020, arXiv:2002.04745), which trains without warm-up.
# Attention is written out: its kernels are the same in training and evaluation, and sum in one
# order.
#
# Shapes: L places, H heads, K features of a head.
# Source: Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762).

_TEXT_WIDTH = 128
_NUM_LAYERS = 2
_NUM_HEADS = 4


class Attention(nn.Module):
    """Every place looks at all places that are no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(_TEXT_WIDTH, 3 * _TEXT_WIDTH)
        self.out = nn.Linear(_TEXT_WIDTH, _TEXT_WIDTH)

    def forward(self, x_BLD: Tensor, padding_BL: Tensor) -> Tensor:
        size, length, _ = x_BLD.shape
        parts = self.queries_keys_values(x_BLD).view(size, length, 3, _NUM_HEADS, -1)
        queries_BHLK, keys_BHLK, values_BHLK = parts.permute(2, 0, 3, 1, 4).unbind()
        scale = math.sqrt(queries_BHLK.shape[-1])
        scores_BHLL = queries_BHLK @ keys_BHLK.transpose(-1, -2) / scale
        scores_BHLL = scores_BHLL.masked_fill(padding_BL[:, None, None], float("-inf"))
        mixed_BHLK = scores_BHLL.softmax(dim=-1) @ values_BHLK
        mixed_BLD: Tensor = self.out(mixed_BHLK.transpose(1, 2).reshape(size, length, -1))
        return mixed_BLD


class Block(nn.Module):
    """Attention, and two layers for each place by itself, each added to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_TEXT_WIDTH), nn.LayerNorm(_TEXT_WIDTH)
        self.attention = Attention()
        self.each = nn.Sequential(
            nn.Linear(_TEXT_WIDTH, 2 * _TEXT_WIDTH),
            nn.GELU(),
            nn.Linear(2 * _TEXT_WIDTH, _TEXT_WIDTH),
        )

    def forward(self, x_BLD: Tensor, padding_BL: Tensor) -> Tensor:
        x_BLD = x_BLD + self.attention(self.norm1(x_BLD), padding_BL)
        out_BLD: Tensor = x_BLD + self.each(self.norm2(x_BLD))
        return out_BLD


class TextTransformer(nn.Module):
    """Embeddings of tokens and places, blocks, the mean without padding, and a head `fc`."""

    def __init__(self, *, vocabulary: int, length: int, num_classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, _TEXT_WIDTH)
        self.places_LD = nn.Parameter(torch.empty(length, _TEXT_WIDTH).normal_(std=0.02))
        self.blocks = nn.ModuleList(Block() for _ in range(_NUM_LAYERS))
        self.norm = nn.LayerNorm(_TEXT_WIDTH)
        self.fc = nn.Linear(_TEXT_WIDTH, num_classes)
        initialize(self)

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        """Map tokens, int64 B x L with 0 for padding, to logits B x C.

        A text without any token is one place of padding.
        """
        tokens_BL = given[0] if given else next(iter(named.values()))
        padding_BL = tokens_BL == 0
        # Else a text without tokens would have nothing to look at, and no mean.
        first_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device) == 0
        padding_BL = padding_BL & ~first_L
        x_BLD = self.tokens(tokens_BL) + self.places_LD[: tokens_BL.shape[1]]
        for block in self.blocks:
            x_BLD = block(x_BLD, padding_BL)
        real_BL1 = (~padding_BL)[:, :, None].to(x_BLD.dtype)
        mean_BD = (x_BLD * real_BL1).sum(dim=1) / real_BL1.sum(dim=1)
        logits_BC: Tensor = self.fc(self.norm(mean_BD))
        return logits_BC


def text_tiny(*, num_classes: int, inputs: InputSpec) -> nn.Module:
    """128 features, two layers of four heads; 0.3 million parameters besides the embeddings."""
    tokens = _tokens(inputs)
    return TextTransformer(
        vocabulary=tokens.num_values, length=tokens.shape[0], num_classes=num_classes
    )


def _tokens(inputs: InputSpec) -> Column:
    if isinstance(inputs, ColumnsSpec) and len(inputs.columns) == 1:
        (column,) = inputs.columns
        if len(column.shape) == 1 and column.num_values:
            return column
    raise ConfigError(
        f"the model text:tiny cannot take {inputs}: it takes tokens alone. Open texts, for example "
        "with 'csv:PATH?text=COLUMN', or choose another model."
    )


PREFIX = "torchvision:"

# Their defaults add auxiliary outputs, or warn that a default will change.
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "googlenet": {"aux_logits": False, "init_weights": True},
        "inception_v3": {"aux_logits": False, "init_weights": True},
    }
)


def build_torchvision(name: str, *, num_classes: int, in_channels: int) -> nn.Module:
    """Build `torchvision.models.NAME` with random weights.

    A model sees grayscale images as three equal channels: its stem takes RGB.
    """
    from torchvision import models  # noqa: PLC0415 - slow to import, and not always needed

    classifiers = models.list_models(module=models)
    if name not in classifiers and name in models.list_models():
        raise ConfigError(
            f"torchvision:{name} is not an image classifier. Use one, such as torchvision:resnet50."
        )
    if name not in classifiers:
        close = difflib.get_close_matches(name, classifiers, n=5)
        hint = (
            f"Did you mean {', '.join(close)}?" if close else f"There are {', '.join(classifiers)}."
        )
        raise UnknownNameError(f"torchvision has no model {name!r}. {hint}")
    model: nn.Module = models.get_model(
        name, weights=None, num_classes=num_classes, **_ARGUMENTS.get(name, {})
    )
    if in_channels == 1:
        model.register_forward_pre_hook(_repeat_channel)
    return model


def _repeat_channel(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    images, *rest = args
    return images.expand(-1, 3, -1, -1), *rest
