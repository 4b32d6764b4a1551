"""Multi-label: an example has any of several labels.

The loss is the binary cross-entropy of every label with the logit given for it, summed over the
labels, so that its residual is sigmoid - y. The score is the micro F1 at even odds: all labels of
all examples are one heap of answers, of which 2 TP / (2 TP + FP + FN) is taken. The share of
answers that are right would be no judge of a soup: where labels are rare, saying no to all of
them is right nearly always, and a learner that begins to find some loses by its first mistakes.

Shapes: B examples, C labels.
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
class MultiLabel:
    """Any of `num_labels`; targets are uint8 B x C, 1 for a label that the example has."""

    num_labels: Annotated[int, Field(ge=1)]
    kind: Literal[TargetKind.CLASSES] = TargetKind.CLASSES

    @property
    def num_outputs(self) -> int:
        """C."""
        return self.num_labels

    def losses(
        self, outputs_BT: Tensor, targets_B: Tensor, *, label_smoothing: float = 0.0
    ) -> Tensor:
        """The binary cross-entropies' sum; smoothing draws 0 and 1 towards a half."""
        wanted_BC = targets_B.float() * (1 - label_smoothing) + label_smoothing / 2
        return functional.binary_cross_entropy_with_logits(
            outputs_BT.float(), wanted_BC, reduction="none"
        ).sum(dim=-1)

    def mean_loss(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """The mean of the losses."""
        return self.losses(outputs_BT, targets_B).mean()

    def residuals(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """The sigmoid minus the labels; as in `Target`."""
        return (outputs_BT.to(torch.float64).sigmoid() - targets_B).to(torch.float32)

    def merits(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """The share of the labels that are answered rightly."""
        return ((outputs_BT > 0) == (targets_B > 0)).float().mean(dim=-1)

    def tally(self) -> MicroF1:
        """Count answers."""
        return MicroF1()

    def __str__(self) -> str:
        return f"{self.num_labels} labels"


class MicroF1(Tally):
    """2 TP / (2 TP + FP + FN) over all labels of all examples; 1 where there is none to find.

    An output that is not finite counts as the wrong answer.
    """

    def __init__(self) -> None:
        # True positives, and wrong answers of either sort.
        self._counts = torch.zeros(2, dtype=torch.int64)

    def add(self, outputs_BT: Tensor, targets_B: Tensor) -> None:
        """Count a batch, where it is."""
        has_BC, finite_BC = targets_B > 0, outputs_BT.isfinite()
        said_BC = outputs_BT > 0
        found = (said_BC & has_BC & finite_BC).sum()
        wrong = ((said_BC != has_BC) | ~finite_BC).sum()
        self._counts = self._counts.to(outputs_BT.device) + torch.stack([found, wrong])

    def score(self) -> float:
        """In [0, 1]."""
        found, wrong = self._counts.tolist()
        return 2 * found / (2 * found + wrong) if found or wrong else 1.0
