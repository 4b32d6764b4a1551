"""WRN-28-10, the wide residual network of the CIFAR-100 results.

Shapes: N images, C classes, D features.
Source: Zagoruyko & Komodakis 2016, "Wide Residual Networks" (arXiv:1605.07146).
Their dropout is left out: it is off in their CIFAR figures for flipped and cropped images.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipt.common.models.initialization import initialize


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
        """Map N x in_channels x H x W to N x out_channels x H/stride x W/stride."""
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
        """Map images N x in_channels x H x W to logits N x C."""
        out = torch.relu(self.bn(self.blocks(self.conv1(x))))
        features_ND = out.mean(dim=(2, 3))
        logits_NC: Tensor = self.fc(features_ND)
        return logits_NC


def wrn28_10(*, num_classes: int, in_channels: int) -> nn.Module:
    """WRN-28-10: 36,479,194 parameters for 10 classes of RGB images."""
    return WideResNet(depth=28, width=10, in_channels=in_channels, num_classes=num_classes)
