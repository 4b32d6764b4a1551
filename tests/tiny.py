"""A model of 650 weights, so that what a test measures is the service."""

import torch
from torch import Tensor, nn


def linear(*, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


class Shifted(nn.Module):
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.randn(1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) + self.shift


def shifted(*, num_classes: int) -> nn.Module:
    return nn.Sequential(Shifted(), nn.Linear(64, num_classes))
