"""A regression data set, and a small model for it.

How ill 442 people were a year later, from scikit-learn's `diabetes`.
"""

from typing import Any

import torch
from sklearn.datasets import load_diabetes
from torch import nn

# Every fifth person is held out.
_HELD_OUT = 5


def _people() -> list[tuple[torch.Tensor, float]]:
    table: Any = load_diabetes()
    # Its columns have a sum of squares of 1.
    inputs_ND = torch.tensor(table.data * len(table.data) ** 0.5, dtype=torch.float32)
    return list(zip(inputs_ND, map(float, table.target), strict=True))


def people() -> list[tuple[torch.Tensor, float]]:
    return [person for row, person in enumerate(_people()) if row % _HELD_OUT]


def people_held_out() -> list[tuple[torch.Tensor, float]]:
    return _people()[::_HELD_OUT]


def regressor(*, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, num_classes))
