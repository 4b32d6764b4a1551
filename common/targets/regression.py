"""Regression: of an example one number or several are to be told.

A model gives them standardized, by the mean and the deviation that they have in the data set,
which travel with a learner's task as those of images do. The loss is half the squared error in
these units, summed over the numbers, so that its residual is output - y. The score is R², the
share of the numbers' variance that is explained, in the mean over the numbers: the same in any
units, 0 for who always says the mean.

Shapes: B examples, T numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.errors import ConfigError
from lipt.common.targets.kinds import TargetKind
from lipt.common.targets.target import Tally

# There is no worst R²; outputs that are not finite have none.
_LOWEST_SCORE = -1.0
_MAX_OUTPUTS = 100_000

Numbers = Annotated[tuple[float, ...], Field(min_length=1, max_length=_MAX_OUTPUTS)]


@dataclass(frozen=True)
class Regression:
    """Numbers; targets are float32 B x T in the data's own units.

    Attributes:
        mean: of every number over the data set.
        std: population standard deviation, above 0.

    Raises:
        ConfigError: not one finite mean and one positive deviation for each number.
    """

    mean: Numbers
    std: Numbers
    kind: Literal[TargetKind.NUMBER] = TargetKind.NUMBER

    def __post_init__(self) -> None:
        """Refuse what no number can be standardized by."""
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        positive = all(deviation > 0 for deviation in self.std)
        if not len(self.mean) == len(self.std) or not finite or not positive:
            raise ConfigError(
                f"targets cannot be standardized by the means {list(self.mean)} and the "
                f"deviations {list(self.std)}: one finite mean and one positive deviation is "
                "needed for each number."
            )

    @property
    def num_outputs(self) -> int:
        """T."""
        return len(self.mean)

    def standardized(self, targets_BT: Tensor) -> Tensor:
        """Numbers in their own units as a model gives them; float64."""
        mean_T, std_T = self._scales(targets_BT)
        return (targets_BT.to(torch.float64) - mean_T) / std_T

    def in_own_units(self, outputs_BT: Tensor) -> Tensor:
        """What a model gives, in the data's units; float64."""
        mean_T, std_T = self._scales(outputs_BT)
        return outputs_BT.to(torch.float64) * std_T + mean_T

    def losses(
        self,
        outputs_BT: Tensor,
        targets_B: Tensor,
        *,
        label_smoothing: float = 0.0,  # noqa: ARG002 - as in `Target`
    ) -> Tensor:
        """Half the squared errors' sum; as in `Target`."""
        wanted_BT = self.standardized(targets_B).float()
        return (outputs_BT.float() - wanted_BT).square().sum(dim=-1) / 2

    def mean_loss(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """The mean of the losses."""
        return self.losses(outputs_BT, targets_B).mean()

    def residuals(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """The outputs minus the standardized numbers; as in `Target`."""
        return (outputs_BT.to(torch.float64) - self.standardized(targets_B)).to(torch.float32)

    def merits(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """1 less the squared error, whose mean over the data set is R²."""
        off_BT = outputs_BT.to(torch.float64) - self.standardized(targets_B)
        return (1 - off_BT.square().mean(dim=-1)).float()

    def tally(self) -> ExplainedVariance:
        """Collect squared errors."""
        return ExplainedVariance(self)

    def _scales(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean_T = torch.tensor(self.mean, dtype=torch.float64, device=like.device)
        return mean_T, torch.tensor(self.std, dtype=torch.float64, device=like.device)

    def __str__(self) -> str:
        return "a number" if self.num_outputs == 1 else f"{self.num_outputs} numbers"


class ExplainedVariance(Tally):
    """R², the mean over the numbers; whatever is below -1 is -1.

    Sums are exact, so that they do not depend on the order or the batches. A number that is
    the same for all counts 1 where it is told exactly, else 0.
    """

    def __init__(self, target: Regression) -> None:
        """Collect in the units of `target`."""
        self._target = target
        self._wanted: list[Tensor] = []
        self._squares: list[Tensor] = []

    def add(self, outputs_BT: Tensor, targets_B: Tensor) -> None:
        """Collect a batch, on the CPU."""
        wanted_BT = self._target.standardized(targets_B)
        self._wanted.append(wanted_BT.cpu())
        self._squares.append((outputs_BT.to(torch.float64) - wanted_BT).square().cpu())

    def score(self) -> float:
        """In [-1, 1]."""
        squares_TN, wanted_TN = torch.cat(self._squares).T, torch.cat(self._wanted).T
        if not bool(squares_TN.isfinite().all()):
            return _LOWEST_SCORE
        pairs = zip(squares_TN.tolist(), wanted_TN.tolist(), strict=True)
        scores = [_explained(squares, wanted) for squares, wanted in pairs]
        return max(_LOWEST_SCORE, math.fsum(scores) / len(scores))


def _explained(squares: list[float], wanted: list[float]) -> float:
    mean = math.fsum(wanted) / len(wanted)
    left = math.fsum(squares)
    total = math.fsum((number - mean) ** 2 for number in wanted)
    if total == 0:
        return float(left == 0)
    return 1 - left / total
