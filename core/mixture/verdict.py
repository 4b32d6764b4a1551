"""Verdict: whether a mixture is measurably better than equal shares, from held-out losses.

Shapes: N target examples, K sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

# 95% of a normal distribution.
_DEVIATIONS = 1.96
# One source with such a share is as good as alone.
_ALONE = 0.95


class Finding(StrEnum):
    """The kinds of verdicts."""

    BETTER = "better"
    ALONE = "alone"
    NOT_BETTER = "not better"
    NOTHING_TO_MIX = "nothing to mix"


@dataclass(frozen=True)
class MixtureVerdict:
    """A finding; the mean loss that the weights save against equal shares, and its interval."""

    finding: Finding
    gain: float = 0.0
    low: float = 0.0
    high: float = 0.0
    source: str = ""

    def __str__(self) -> str:
        figures = f"{self.gain:.3f} (95% interval {self.low:.3f} to {self.high:.3f})"
        match self.finding:
            case Finding.NOTHING_TO_MIX:
                return f"There is one source, {self.source}, so there is nothing to mix."
            case Finding.NOT_BETTER:
                return (
                    "No mixture is measurably better than equal shares here: the held-out loss "
                    f"falls by {figures}."
                )
            case Finding.ALONE:
                return (
                    f"One source alone, {self.source}, serves this target: its learner's held-out "
                    f"loss is below equal shares by {figures}."
                )
        return f"Better than equal shares: the held-out loss of merged learners falls by {figures}."


def judge(
    gains_N: Tensor, crossed_N: Tensor, weights_K: Tensor, names: tuple[str, ...]
) -> MixtureVerdict:
    """Judge by what each held-out example gains on equal shares.

    `crossed_N` are gains under other learners than those that the weights were fitted to: without
    a gain there, the weights follow the learners' chance.
    """
    if len(names) == 1:
        return MixtureVerdict(Finding.NOTHING_TO_MIX, source=names[0])
    gain, low, high = _interval(gains_N)
    if min(low, _interval(crossed_N)[1]) <= 0:
        return MixtureVerdict(Finding.NOT_BETTER, gain, low, high)
    largest = int(weights_K.argmax())
    if float(weights_K[largest]) >= _ALONE:
        return MixtureVerdict(Finding.ALONE, gain, low, high, names[largest])
    return MixtureVerdict(Finding.BETTER, gain, low, high)


def _interval(gains_N: Tensor) -> tuple[float, float, float]:
    """The mean and its 95% interval."""
    mean, spread = float(gains_N.mean()), 0.0
    if len(gains_N) > 1:
        spread = _DEVIATIONS * float(gains_N.std()) / len(gains_N) ** 0.5
    return mean, mean - spread, mean + spread
