"""Targets: kinds, and how the labels of data are read as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor

from lipt.common.targets.kinds import TargetKind

# Target: what the stages of the pipeline ask of any kind of target.
#
# A model's last layer gives T outputs of an example. Of every kind the gradient of the example's
# own loss by these outputs is a residual, what the model says minus what is true, so that the
# last layer's gradient is the outer product of residual and feature.
#
# Shapes: B examples, T outputs.


class Tally(ABC):
    """What is counted of outputs, batch by batch; the same whatever the batches are."""

    @abstractmethod
    def add(self, outputs_BT: Tensor, targets_B: Tensor) -> None:
        """Count a batch; both on one device."""

    @abstractmethod
    def score(self) -> float:
        """The score of all that was counted, at least one example; larger is better, 1 best."""

    def best_possible(self, num_left: int) -> float:  # noqa: ARG002 - for those that can tell
        """The most that the score can come to when so many more examples are counted."""
        return 1.0


class Target(Protocol):
    """A kind of target with what is known of it, a frozen value.

    Targets of a batch are what a data set has of its examples: int64 B for a class, and
    B x T else, uint8 of 0 and 1 or float32 in the data's own units.
    """

    @property
    def kind(self) -> TargetKind:
        """What sort of target it is."""
        ...

    @property
    def num_outputs(self) -> int:
        """T, which a model's last layer has to give."""
        ...

    def losses(
        self, outputs_BT: Tensor, targets_B: Tensor, *, label_smoothing: float = 0.0
    ) -> Tensor:
        """Each example's own loss; B float32.

        Args:
            outputs_BT: of any floating type.
            targets_B: on the same device.
            label_smoothing: share of a target that is spread over all that it could be; of
                numbers there is nothing to spread.
        """
        ...

    def mean_loss(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """The mean loss of a batch; 0-d float32."""
        ...

    def residuals(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """The gradient of each example's own loss by its outputs; B x T float32.

        Computed in float64: what is left of a confident answer has few correct digits in
        float32.
        """
        ...

    def merits(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """How well each example is answered, 1 at best; B float32.

        Their mean is near the score and is no sum of counts: for the progress of training.
        """
        ...

    def tally(self) -> Tally:
        """Begin to count a score."""
        ...

    def __str__(self) -> str:
        """As messages have it: `10 classes`."""
        ...
