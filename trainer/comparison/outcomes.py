"""Outcomes of a comparison: accuracy, cost and time to a target of each way to choose.

Rows are compared within a seed, whose trainings share the run, initial weights and order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import TypeVar

from lipt.common.imports import import_extra
from lipt.trainer.comparison.trial import (
    BASELINES,
    EVERYTHING,
    FIXED,
    REDRAWN,
    SOFT,
    Trial,
    label,
)

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences with its 95% interval, which is infinite for one pair."""

    mean: float
    low: float
    high: float
    num_seeds: int = 1

    @property
    def bounded(self) -> bool:
        """Whether the interval is finite."""
        return isfinite(self.low)


def paired_difference(
    values: Mapping[KeyT, float], baseline: Mapping[KeyT, float]
) -> Difference | None:
    """The mean difference and Student's 95% interval over the keys (seeds) that both have.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    pairs = [value - baseline[key] for key, value in values.items() if key in baseline]
    if not pairs:
        return None
    mean, count = fmean(pairs), len(pairs)
    if count < 2:
        return Difference(mean, -inf, inf)
    stats = import_extra(
        "scipy.stats", package="scipy", extra="report", needed_for="a confidence interval"
    )
    margin = float(stats.t.ppf(0.975, df=count - 1)) * stdev(pairs) / sqrt(count)
    return Difference(mean, mean - margin, mean + margin, count)


@dataclass(frozen=True)
class Reached:
    """How soon some trainings reached a target; the means are of those that did."""

    num_trainings: int
    num_reached: int
    steps: float | None
    seconds: float | None

    @property
    def always(self) -> bool:
        """Whether every training reached it."""
        return self.num_reached == self.num_trainings


@dataclass(frozen=True)
class Rival:
    """Everything, or re-drawn random, for as many steps as a row.

    difference: of the row's accuracy to the rival's.
    reached: how soon the rival reached the row's target; None without looks.
    later: seconds until the row reached it, less the rival's; None where not all trainings did.
    """

    difference: Difference | None
    reached: Reached | None
    later: Difference | None


@dataclass(frozen=True)
class Outcome:
    """One strategy or baseline at one fraction over all seeds; costs are means.

    difference: to the better fixed random subset; None for these and for everything; with soft
        labels, to the same without them.
    everything, redrawn: its rivals.
    subset_accuracy, levelled_off: None where the examples changed, and for everything.
    target: what the better fixed random subset ends with; None without one.
    reached: how soon the target was reached; None without a target or looks.
    """

    strategy: str
    fraction: float
    num_seeds: int
    mean_accuracy: float
    std_accuracy: float
    difference: Difference | None
    everything: Rival
    redrawn: Rival
    subset_accuracy: float | None
    levelled_off: bool | None
    num_steps: int
    pretraining_seconds: float
    selection_seconds: float
    training_seconds: float
    bytes_sent: float
    target: float | None
    reached: Reached | None
    score_name: str = "accuracy"

    @property
    def choosing_seconds(self) -> float:
        """Pre-training and selection."""
        return self.pretraining_seconds + self.selection_seconds

    @property
    def label(self) -> str:
        """Its name in tables and sentences."""
        return label(self.strategy)

    @property
    def is_baseline(self) -> bool:
        """Whether nothing was chosen."""
        return self.strategy in BASELINES

    @property
    def is_soft(self) -> bool:
        """Whether it was trained with soft labels."""
        return self.strategy.endswith(SOFT)

    @property
    def is_judged(self) -> bool:
        """Whether the verdict is about it: a chosen subset and its labels."""
        return not self.is_baseline and not self.is_soft

    @property
    def beats_random(self) -> bool:
        """Whether zero lies below the interval of a chosen subset."""
        return self.is_judged and self.difference is not None and self.difference.low > 0


def outcomes(trials: Sequence[Trial]) -> list[Outcome]:
    """One row per fraction and strategy: baselines first, then the best first."""
    everything = _of(trials, EVERYTHING)
    rows: list[Outcome] = []
    for fraction in sorted({trial.fraction for trial in trials}):
        within = [trial for trial in trials if trial.fraction == fraction]
        names = dict.fromkeys(trial.strategy for trial in within)
        found = [_outcome(_of(within, name), within, everything) for name in names]
        rows += sorted(
            found, key=lambda row: (row.is_soft, not row.is_baseline, -row.mean_accuracy)
        )
    return rows


def _outcome(row: Sequence[Trial], within: Sequence[Trial], everything: Sequence[Trial]) -> Outcome:
    name, accuracies = row[0].strategy, _accuracies(row)
    fixed = (_of(within, random) for random in FIXED)
    random = max(fixed, key=lambda found: fmean(_accuracies(found).values()) if found else -inf)
    if name.endswith(SOFT):
        random = _of(within, name.removesuffix(SOFT))
    target = fmean(_accuracies(random).values()) if random else None
    difference = paired_difference(accuracies, _accuracies(random))
    on_subset = [trial.subset_accuracy for trial in row if trial.subset_accuracy is not None]
    return Outcome(
        strategy=name,
        fraction=row[0].fraction,
        num_seeds=len(row),
        mean_accuracy=fmean(accuracies.values()),
        std_accuracy=stdev(accuracies.values()) if len(row) > 1 else 0.0,
        difference=None if name in (*FIXED, EVERYTHING) else difference,
        everything=_rival(row, everything, target),
        redrawn=_rival(row, _of(within, REDRAWN), target),
        subset_accuracy=fmean(on_subset) if len(on_subset) == len(row) else None,
        levelled_off=None
        if name in (EVERYTHING, REDRAWN)
        else all(trial.levelled_off for trial in row),
        num_steps=row[0].num_steps,
        pretraining_seconds=fmean(trial.pretraining_seconds for trial in row),
        selection_seconds=fmean(trial.selection_seconds for trial in row),
        training_seconds=fmean(trial.training_seconds for trial in row),
        bytes_sent=fmean(trial.bytes_sent for trial in row),
        target=target,
        reached=_reached(row, target),
        score_name=row[0].score_name,
    )


def _rival(row: Sequence[Trial], rivals: Sequence[Trial], target: float | None) -> Rival:
    difference = later = None
    if rivals and rivals[0].strategy != row[0].strategy:
        difference = paired_difference(_accuracies(row), _accuracies(rivals))
    ours, theirs = (_seconds(found, target) for found in (row, rivals))
    if len(ours) == len(row) and len(theirs) == len(rivals):
        later = paired_difference(ours, theirs)
    return Rival(difference, _reached(rivals, target), later)


def _seconds(trials: Sequence[Trial], target: float | None) -> dict[int, float]:
    """Seconds until each training reached the target, by its seed."""
    if target is None:
        return {}
    return {trial.seed: when[1] for trial in trials if (when := trial.reached(target)) is not None}


def _reached(trials: Sequence[Trial], target: float | None) -> Reached | None:
    if target is None or not trials or not all(trial.looks for trial in trials):
        return None
    found = [when for trial in trials if (when := trial.reached(target)) is not None]
    return Reached(
        num_trainings=len(trials),
        num_reached=len(found),
        steps=fmean(steps for steps, _ in found) if found else None,
        seconds=fmean(seconds for _, seconds in found) if found else None,
    )


def _of(trials: Sequence[Trial], strategy: str) -> list[Trial]:
    return [trial for trial in trials if trial.strategy == strategy]


def _accuracies(trials: Sequence[Trial]) -> dict[int, float]:
    return {trial.seed: trial.test_accuracy for trial in trials}
