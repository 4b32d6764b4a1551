"""Data sets whose examples have no single class, and a small model for them.

Numbers: how ill 442 people were a year later, and their age beside it, from scikit-learn's
`diabetes`. Labels: what 1,797 handwritten digits have, of which one has several or none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn

# Every fifth person is held out.
_HELD_OUT = 5
LABELS = {"even": {0, 2, 4, 6, 8}, "large": {5, 6, 7, 8, 9}, "prime": {2, 3, 5, 7}}


def people() -> list[tuple[torch.Tensor, float]]:
    """Ten measurements of each person, and how ill they were."""
    return _people(held_out=False)


def people_held_out() -> list[tuple[torch.Tensor, float]]:
    """Those of others."""
    return _people(held_out=True)


def people_twice() -> list[tuple[torch.Tensor, list[float]]]:
    """Two numbers for each of `people`."""
    return [(inputs, [number, float(inputs[0])]) for inputs, number in people()]


class Properties:
    """Digits as a map-style data set, with names of what they have for labels."""

    classes = tuple(LABELS)

    def __init__(self) -> None:
        digits: Any = load_digits()
        self.images = (digits.images * 15).astype(np.uint8)
        self.digits = digits.target.tolist()

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, row: int) -> tuple[np.ndarray, list[str]]:
        has = [label for label, digits in LABELS.items() if self.digits[row] in digits]
        return self.images[row], has


def properties() -> Properties:
    """The labels of images, by their names."""
    return Properties()


def boxes() -> list[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """What is not taken: objects to be found."""
    return [(inputs, {"boxes": torch.zeros(1, 4)}) for inputs, _ in people()]


def regressor(*, num_classes: int) -> nn.Module:
    """For the ten measurements."""
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, num_classes))


def _people(*, held_out: bool) -> list[tuple[torch.Tensor, float]]:
    table: Any = load_diabetes()
    # Its columns have a sum of squares of 1.
    inputs_ND = torch.tensor(table.data * len(table.data) ** 0.5, dtype=torch.float32)
    rows = range(len(inputs_ND))
    return [
        (inputs_ND[row], float(table.target[row]))
        for row in rows
        if (row % _HELD_OUT == 0) is held_out
    ]
