"""ConvNet: convolutions whose normalization looks at one image alone, for data distillation.

A block is a 3x3 convolution, instance norm, ReLU, and an average over 2x2, which is left out
where nothing is left to halve. No example's output depends on the others of its batch, so that the
gradient of a class is the mean of its examples' gradients.

Shapes: N images, C classes.
Source: Gidaris and Komodakis 2018, "Dynamic Few-Shot Visual Learning without Forgetting"
(arXiv:1804.09458); since Zhao et al. 2021 (arXiv:2006.05929) what images are distilled with.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipt.common.inputs.specs import ImageSpec
from lipt.common.models.initialization import initialize

_WIDTH, _NUM_BLOCKS = 64, 3


class ConvNet(nn.Module):
    """Three blocks of 64 channels, and a linear head `fc` on all that is left of the image."""

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
        """Map images N x in_channels x H x W to logits N x C."""
        logits_NC: Tensor = self.fc(torch.flatten(self.blocks(x), 1))
        return logits_NC


def convnet(*, num_classes: int, image: ImageSpec) -> nn.Module:
    """The net of all images of one size: 86,090 parameters for CIFAR's."""
    return ConvNet(num_classes=num_classes, image=image)
