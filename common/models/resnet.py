"""ResNet for small images: a 3x3 stem with stride 1 and no max-pooling.

Every stage after the first halves the image, and the global average takes
whatever is left, so 8x8 digits work as well as 32x32 photographs.

Shapes: N images, C classes, D features.
Source: He et al. 2015, "Deep Residual Learning for Image Recognition" (arXiv:1512.03385);
the stem and the widths 64-128-256-512 for CIFAR are those common in the field.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lipt.common.models.initialization import initialize


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
        """Map N x in_channels x H x W to N x out_channels x H/stride x W/stride."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of basic blocks, the global average, and a linear head `fc`."""

    def __init__(
        self, *, widths: Sequence[int], blocks_per_stage: int, in_channels: int, num_classes: int
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
        """Map images N x in_channels x H x W to logits N x C."""
        out = self.blocks(torch.relu(self.bn1(self.conv1(x))))
        features_ND = out.mean(dim=(2, 3))
        logits_NC: Tensor = self.fc(features_ND)
        return logits_NC


def resnet18(*, num_classes: int, in_channels: int) -> nn.Module:
    """ResNet-18 for CIFAR: 11,173,962 parameters for 10 classes of RGB images."""
    return ResNet(
        widths=(64, 128, 256, 512),
        blocks_per_stage=2,
        in_channels=in_channels,
        num_classes=num_classes,
    )


def resnet8(*, num_classes: int, in_channels: int) -> nn.Module:
    """A net that CPUs can train: three stages of one block, 16, 32 and 64 channels wide."""
    return ResNet(
        widths=(16, 32, 64), blocks_per_stage=1, in_channels=in_channels, num_classes=num_classes
    )
