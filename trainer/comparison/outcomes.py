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
from lipt.trainer.comparison.baselines import (
    BASELINES,
    EVERYTHING,
    FIXED,
    REDRAWN,
    SOFT,
    label,
)
from lipt.trainer.comparison.trial import Trial

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
class Reach:
    """How soon the trainings of a row and those of its rivals reached a target accuracy."""

    target: float
    own: Reached
    everything: Reached | None
    redrawn: Reached | None
    to_everything: Difference | None
    to_redrawn: Difference | None


def reach(
    trials: Sequence[Trial], target: float, everything: Sequence[Trial], redrawn: Sequence[Trial]
) -> Reach | None:
    """How soon the trainings of one row and its rivals reach an accuracy; None without looks."""
    own = _reached(trials, target)
    if own is None:
        return None
    return Reach(
        target=target,
        own=own,
        everything=_reached(everything, target),
        redrawn=_reached(redrawn, target),
        to_everything=_later(trials, everything, target),
        to_redrawn=_later(trials, redrawn, target),
    )


def _reached(trials: Sequence[Trial], target: float) -> Reached | None:
    if not trials or not all(trial.looks for trial in trials):
        return None
    found = [when for trial in trials if (when := trial.reached(target)) is not None]
    return Reached(
        num_trainings=len(trials),
        num_reached=len(found),
        steps=fmean(steps for steps, _ in found) if found else None,
        seconds=fmean(seconds for _, seconds in found) if found else None,
    )


def _later(trials: Sequence[Trial], rivals: Sequence[Trial], target: float) -> Difference | None:
    ours, theirs = (
        {trial.seed: when[1] for trial in found if (when := trial.reached(target)) is not None}
        for found in (trials, rivals)
    )
    if len(ours) < len(trials) or len(theirs) < len(rivals):
        return None
    return paired_difference(ours, theirs)


@dataclass(frozen=True)
class Outcome:
    """One strategy or baseline at one fraction over all seeds.

    difference: to the better fixed random subset; None for these and for everything; with soft
        labels, to the same without them.
    to_everything, to_redrawn: to training on all examples, and on a random subset that is
        re-drawn every epoch, for as many steps; None where they were not trained.
    subset_accuracy, levelled_off: None where the examples changed, and for everything.
    choosing_seconds: pre-training and selection.
    reach: how soon it reached what the better fixed random subset ends with.
    """

    strategy: str
    fraction: float
    num_seeds: int
    mean_accuracy: float
    std_accuracy: float
    difference: Difference | None
    to_everything: Difference | None
    to_redrawn: Difference | None
    subset_accuracy: float | None
    levelled_off: bool | None
    num_steps: int
    pretraining_seconds: float
    selection_seconds: float
    choosing_seconds: float
    training_seconds: float
    total_seconds: float
    bytes_sent: float
    reach: Reach | None
    score_name: str = "accuracy"

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
    first, accuracies = row[0], _accuracies(row)
    redrawn, random = _of(within, REDRAWN), _best_fixed(within)
    if first.strategy.endswith(SOFT):
        random = _of(within, first.strategy.removesuffix(SOFT))
    is_everything, is_redrawn = first.strategy == EVERYTHING, first.strategy == REDRAWN
    stays = not is_everything and not is_redrawn
    is_rival = is_everything or first.strategy in FIXED
    known = [trial.subset_accuracy for trial in row if trial.subset_accuracy is not None]
    target = fmean(_accuracies(random).values()) if random else None
    return Outcome(
        strategy=first.strategy,
        fraction=first.fraction,
        num_seeds=len(row),
        mean_accuracy=fmean(accuracies.values()),
        std_accuracy=stdev(accuracies.values()) if len(row) > 1 else 0.0,
        difference=None if is_rival else paired_difference(accuracies, _accuracies(random)),
        to_everything=None
        if is_everything
        else paired_difference(accuracies, _accuracies(everything)),
        to_redrawn=None if is_redrawn else paired_difference(accuracies, _accuracies(redrawn)),
        subset_accuracy=fmean(known) if len(known) == len(row) else None,
        levelled_off=all(trial.levelled_off for trial in row) if stays else None,
        num_steps=first.num_steps,
        pretraining_seconds=fmean(trial.pretraining_seconds for trial in row),
        selection_seconds=fmean(trial.selection_seconds for trial in row),
        choosing_seconds=fmean(trial.choosing_seconds for trial in row),
        training_seconds=fmean(trial.training_seconds for trial in row),
        total_seconds=fmean(trial.total_seconds for trial in row),
        bytes_sent=fmean(trial.bytes_sent for trial in row),
        reach=None if target is None else reach(row, target, everything, redrawn),
        score_name=first.score_name,
    )


def _best_fixed(within: Sequence[Trial]) -> list[Trial]:
    fixed = (_of(within, name) for name in FIXED)
    return max(fixed, key=lambda found: fmean(_accuracies(found).values()) if found else -inf)


def _of(trials: Sequence[Trial], strategy: str) -> list[Trial]:
    return [trial for trial in trials if trial.strategy == strategy]


def _accuracies(trials: Sequence[Trial]) -> dict[int, float]:
    return {trial.seed: trial.test_accuracy for trial in trials}
