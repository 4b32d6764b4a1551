"""Intervals: paired differences, what they rest on, and how many seeds would decide.

What has the same seed is paired, which removes what the seeds have in common. The unit is the
seed of the whole pipeline, with its trainings averaged, wherever there are several of them:
two trainings on one subset tell nothing of the next subset. Only where there is one pipeline
seed are its trainings the units; the interval is then about this one subset.

A key is (pipeline seed, which of its trainings).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import Literal

from lipt.common.imports import import_extra

Key = tuple[int, int]
Unit = Literal["seeds", "trainings"]

# A point of accuracy: what an interval has to be able to tell.
RESOLUTION = 0.01
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences and its confidence interval, infinite with one pair.

    num_units: how many differences it is the mean of.
    unit: what each of them is of: a seed of the whole pipeline, or a training of the only one.
    num_needed: how many would tell a point of accuracy, where the interval holds zero and is
        too wide for that; None where it decides, or where there is no interval.
    """

    mean: float
    low: float
    high: float
    num_units: int = 1
    unit: Unit = "seeds"
    num_needed: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether there is an interval to speak of."""
        return isfinite(self.low)

    @property
    def basis(self) -> str:
        """What the interval rests on, in words."""
        if self.unit == "seeds":
            return f"{self.num_units} seeds" if self.num_units > 1 else "one seed"
        return f"{self.num_units} trainings of one seed"

    def negated(self) -> Difference:
        """The difference the other way round."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)


def averaged(values: Mapping[Key, float]) -> tuple[list[float], Unit]:
    """A value for each unit: per pipeline seed where there are several, else per training."""
    by_seed: dict[int, list[float]] = {}
    for (seed, _), value in sorted(values.items()):
        by_seed.setdefault(seed, []).append(value)
    if len(by_seed) == 1 and len(values) > 1:
        return [value for _, value in sorted(values.items())], "trainings"
    return [fmean(found) for found in by_seed.values()], "seeds"


def paired_difference(
    values: Mapping[Key, float],
    baseline: Mapping[Key, float],
    *,
    resolution: float = RESOLUTION,
    confidence: float = _CONFIDENCE,
) -> Difference | None:
    """The mean difference and Student's interval, over the trainings that both have.

    Args:
        values: by key.
        baseline: by key.
        resolution: the difference that `num_needed` is for.
        confidence: in (0, 1).
    """
    both = values.keys() & baseline.keys()
    if not both:
        return None
    units, unit = averaged({key: values[key] - baseline[key] for key in both})
    mean, count = fmean(units), len(units)
    if count < 2:
        return Difference(mean, -inf, inf)
    deviation = stdev(units)
    margin = _margin(deviation, count, confidence)
    undecided = mean - margin <= 0 <= mean + margin and margin >= resolution
    return Difference(
        mean,
        mean - margin,
        mean + margin,
        num_units=count,
        unit=unit,
        num_needed=num_needed(deviation, resolution, confidence) if undecided else None,
    )


def num_needed(
    deviation: float, resolution: float = RESOLUTION, confidence: float = _CONFIDENCE
) -> int:
    """How many paired differences make the interval tell a difference of `resolution`.

    The least n of 2 or more with t(n - 1) * deviation / sqrt(n) < resolution. It is about a
    difference that matters, and not about the observed one: that may be zero, which no number
    of seeds would tell from zero.

    Args:
        deviation: the standard deviation of the paired differences.
        resolution: above 0, in the same unit.
        confidence: in (0, 1).

    Raises:
        MissingExtraError: scipy is not installed.
    """
    count = 2
    while _margin(deviation, count, confidence) >= resolution:
        count += 1
    return count


def _margin(deviation: float, count: int, confidence: float) -> float:
    stats = import_extra(
        "scipy.stats", package="scipy", extra="report", needed_for="a confidence interval"
    )
    quantile = float(stats.t.ppf((1 + confidence) / 2, df=count - 1))
    return quantile * deviation / sqrt(count)


def mean_and_deviation(values: Mapping[Key, float]) -> tuple[float, float]:
    """The mean and the standard deviation over the units; the latter is 0 for one."""
    units, _ = averaged(values)
    return fmean(units), stdev(units) if len(units) > 1 else 0.0
