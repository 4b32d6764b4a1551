"""Head targets: what a ridge head is fitted to where examples have no single class.

Labels as 0 and 1, numbers as they are standardized. What least squares says of a label is near
its chance, and read as that within [0, 1].

Shapes: N examples, B of a block, T outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.targets.values import MultiLabel, Regression

# Above it a label is said to be there.
_EVEN = 0.5


@dataclass(frozen=True)
class HeadTargets:
    """Targets of N examples, on the CPU as a data set has them, or where a head is fitted."""

    target: MultiLabel | Regression
    targets_NT: Tensor

    @classmethod
    def of(cls, dataset: Dataset) -> Self | None:
        """Those of a data set's examples; None where they are classes."""
        given = dataset.rows.targets
        return None if given is None else cls(given.target, given.values)

    def take(self, ids_N: Tensor) -> Self:
        """Those of some of the examples."""
        return type(self)(self.target, self.targets_NT[ids_N])

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return type(self)(self.target, self.targets_NT.to(device))

    @property
    def num_outputs(self) -> int:
        """T."""
        return self.target.num_outputs

    def values(self) -> Tensor:
        """What least squares is to give; N x T float64."""
        if isinstance(self.target, Regression):
            return self.target.standardized(self.targets_NT)
        return self.targets_NT.double()

    def score(self, outputs_NT: Tensor) -> float:
        """The kind's own score of what a head gives of all N."""
        tally = self.target.tally()
        labels = isinstance(self.target, MultiLabel)
        tally.add(outputs_NT - _EVEN if labels else outputs_NT, self.targets_NT)
        return tally.score()

    def errors(self, outputs_BT: Tensor, rows: slice) -> Tensor:
        """The residuals of what a head gives of some rows; B x T float32."""
        targets_BT = self.targets_NT[rows]
        if isinstance(self.target, Regression):
            return self.target.residuals(outputs_BT, targets_BT)
        return (outputs_BT.double().clamp(0, 1) - targets_BT).float()
