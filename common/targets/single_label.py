"""Single label: an example is of one of several classes.

The loss is the cross-entropy, its residual softmax - onehot, the score the accuracy.

Shapes: B examples, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lipt.common.targets.kinds import TargetKind
from lipt.common.targets.target import Tally


@dataclass(frozen=True)
class SingleLabel:
    """One class of `num_classes`; targets are int64 B."""

    num_classes: Annotated[int, Field(ge=1)]
    kind: Literal[TargetKind.CLASS] = TargetKind.CLASS

    @property
    def num_outputs(self) -> int:
        """C."""
        return self.num_classes

    def losses(
        self, outputs_BT: Tensor, targets_B: Tensor, *, label_smoothing: float = 0.0
    ) -> Tensor:
        """The cross-entropies; as in `Target`."""
        return functional.cross_entropy(
            outputs_BT.float(), targets_B, reduction="none", label_smoothing=label_smoothing
        )

    def mean_loss(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """The mean cross-entropy, by PyTorch's own reduction."""
        return functional.cross_entropy(outputs_BT.float(), targets_B)

    def residuals(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """The softmax minus the one-hot label; as in `Target`."""
        residuals_BC = outputs_BT.to(torch.float64).softmax(dim=-1)
        residuals_BC -= functional.one_hot(targets_B, outputs_BT.shape[-1])
        return residuals_BC.to(torch.float32)

    def merits(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """Whether the largest output is the class's own."""
        return (outputs_BT.argmax(dim=-1) == targets_B).float()

    def tally(self) -> Accuracy:
        """Count right answers."""
        return Accuracy()

    def __str__(self) -> str:
        return f"{self.num_classes} classes"


class Accuracy(Tally):
    """The share of examples whose largest output is their class's.

    An example with an output that is not finite counts as wrong.
    """

    def __init__(self) -> None:
        self._right = torch.zeros((), dtype=torch.int64)
        self._seen = 0

    def add(self, outputs_BT: Tensor, targets_B: Tensor) -> None:
        """Count a batch, where it is: reading it would make a device wait."""
        right_B = outputs_BT.argmax(dim=-1) == targets_B
        self._right = self._right.to(outputs_BT.device)
        self._right += (right_B & outputs_BT.isfinite().all(dim=-1)).sum()
        self._seen += len(targets_B)

    def score(self) -> float:
        """In [0, 1]."""
        return int(self._right) / self._seen

    def best_possible(self, num_left: int) -> float:
        """What all right answers to come would lead to; as exact as the score."""
        return (int(self._right) + num_left) / (self._seen + num_left)
