"""Outcomes of a comparison: accuracy, cost and time to a target of each way to choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from lipt.trainer.comparison.baselines import BASELINES, EVERYTHING, FIXED, REDRAWN, label
from lipt.trainer.comparison.intervals import (
    Difference,
    Key,
    averaged,
    mean_and_deviation,
    paired_difference,
)
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.main_training.records import Look


@dataclass(frozen=True)
class Reached:
    """How soon some trainings came to a target."""

    num_trainings: int
    num_reached: int
    steps: float | None
    seconds: float | None

    @property
    def always(self) -> bool:
        """Whether every training came to it."""
        return self.num_reached == self.num_trainings


@dataclass(frozen=True)
class Reach:
    """How soon the trainings of a row came to a target, and what people would do instead."""

    target: float
    of_random: bool
    own: Reached
    everything: Reached | None
    redrawn: Reached | None
    to_everything: Difference | None
    to_redrawn: Difference | None


def course(trials: Sequence[Trial]) -> tuple[Look, ...]:
    """Means over trainings that were looked at after the same steps; else nothing."""
    if len({tuple(look.step for look in trial.looks) for trial in trials}) != 1:
        return ()
    return tuple(
        Look(
            step=looks[0].step,
            seconds=fmean(look.seconds for look in looks),
            accuracy=fmean(look.accuracy for look in looks),
        )
        for looks in zip(*(trial.course for trial in trials), strict=True)
    )


def reach(
    trials: Sequence[Trial],
    target: float,
    everything: Sequence[Trial],
    redrawn: Sequence[Trial],
    *,
    of_random: bool,
) -> Reach | None:
    """How soon trainings come to an accuracy.

    Args:
        trials: of one row.
        target: the accuracy.
        everything: trainings on all examples.
        redrawn: trainings on a random subset that is re-drawn every epoch.
        of_random: whether the target is what a fixed random subset ends with.
    """
    own = _reached(trials, target)
    if own is None:
        return None
    return Reach(
        target=target,
        of_random=of_random,
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
    ours, theirs = (_seconds(found, target) for found in (trials, rivals))
    if len(ours) < len(trials) or len(theirs) < len(rivals):
        return None
    # Any width of an interval in seconds will do: it decides by its sign.
    return paired_difference(ours, theirs, resolution=inf)


def _seconds(trials: Sequence[Trial], target: float) -> dict[Key, float]:
    reached = {(trial.seed, trial.repeat): trial.reached(target) for trial in trials}
    return {key: when[1] for key, when in reached.items() if when is not None}


@dataclass(frozen=True)
class Outcome:
    """One strategy or baseline at one fraction over all seeds.

    every: epochs after which it chose or drew again; 0 where its subset stayed.
    num_seeds: of the whole pipeline.
    num_trainings: over all of them.
    std_accuracy: over the seeds, each with its trainings averaged; over the trainings where
        there is one seed.
    rival: what `difference` is to: the better of the two fixed kinds of random, or the random
        subset that was re-drawn as often; empty where there is none.
    difference: to that; None for fixed random subsets and for everything.
    to_everything, to_redrawn: the difference to training on all examples, and to a random
        subset that is re-drawn every epoch, for as many steps; None where they were not trained.
    subset_accuracy, levelled_off: None where the examples changed, and for everything, which
        has few passes on purpose.
    choosing_seconds: of `total_seconds`: pre-training, selection, and waiting for a new one.
    reach: how soon it came to the target; None without one, or without looks on the way.
    course: means over the trainings at each look, their seconds with choosing included.
    score_name: what accuracies are.
    """

    strategy: str
    fraction: float
    every: int
    num_seeds: int
    num_trainings: int
    mean_accuracy: float
    std_accuracy: float
    rival: str
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
    course: tuple[Look, ...]
    score_name: str = "accuracy"

    @property
    def label(self) -> str:
        """What it is called in tables and sentences."""
        return label(self.strategy, self.every)

    @property
    def is_baseline(self) -> bool:
        """Whether nothing was chosen."""
        return self.strategy in BASELINES

    @property
    def beats_random(self) -> bool:
        """Whether zero lies below the interval of a chosen subset."""
        return not self.is_baseline and self.difference is not None and self.difference.low > 0


def outcomes(trials: Sequence[Trial], target: float | None = None) -> list[Outcome]:
    """One row per fraction, strategy and way of choosing: baselines first, then the best first.

    Args:
        trials: of one comparison.
        target: the accuracy that trainings are to reach; where None, at each fraction what
            its fixed random subset ends with.
    """
    everything = [trial for trial in trials if trial.strategy == EVERYTHING]
    rows: list[Outcome] = []
    for fraction in sorted({trial.fraction for trial in trials}):
        within = _Fraction.of(
            [trial for trial in trials if trial.fraction == fraction], everything, target
        )
        found = [within.outcome(group) for group in within.groups()]
        rows += sorted(found, key=lambda row: (not row.is_baseline, -row.mean_accuracy))
    return rows


@dataclass(frozen=True)
class _Fraction:
    trials: Sequence[Trial]
    everything: Sequence[Trial]
    redrawn: Sequence[Trial]
    random: Sequence[Trial]
    target: float | None
    target_of_random: bool

    @classmethod
    def of(
        cls, trials: Sequence[Trial], everything: Sequence[Trial], target: float | None
    ) -> _Fraction:
        fixed = [[trial for trial in trials if trial.strategy == name] for name in FIXED]
        random = max(fixed, key=lambda found: fmean(_accuracies(found).values()) if found else -inf)
        of_random = target is None
        if target is None and random:
            target = fmean(averaged(_accuracies(random))[0])
        redrawn = [trial for trial in trials if (trial.strategy, trial.every) == (REDRAWN, 1)]
        return cls(trials, everything, redrawn, random, target, of_random)

    def groups(self) -> list[list[Trial]]:
        rows: dict[tuple[str, int], list[Trial]] = {}
        for trial in self.trials:
            rows.setdefault((trial.strategy, trial.every), []).append(trial)
        return list(rows.values())

    def outcome(self, row: Sequence[Trial]) -> Outcome:
        first, accuracies = row[0], _accuracies(row)
        mean, deviation = mean_and_deviation(accuracies)
        rival, name = self._rival(first)
        stays = not first.every and first.strategy != EVERYTHING
        to_everything = to_redrawn = None
        if first.strategy != EVERYTHING:
            to_everything = paired_difference(accuracies, _accuracies(self.everything))
        if (first.strategy, first.every) != (REDRAWN, 1):
            to_redrawn = paired_difference(accuracies, _accuracies(self.redrawn))
        reached = None
        if self.target is not None:
            reached = reach(
                row,
                self.target,
                self.everything,
                self.redrawn,
                of_random=self.target_of_random,
            )
        return Outcome(
            strategy=first.strategy,
            fraction=first.fraction,
            every=first.every,
            num_seeds=len({trial.seed for trial in row}),
            num_trainings=len(row),
            mean_accuracy=mean,
            std_accuracy=deviation,
            rival=name,
            difference=paired_difference(accuracies, _accuracies(rival)),
            to_everything=to_everything,
            to_redrawn=to_redrawn,
            subset_accuracy=_mean_where_all([trial.subset_accuracy for trial in row]),
            levelled_off=all(trial.levelled_off for trial in row) if stays else None,
            num_steps=first.num_steps,
            pretraining_seconds=fmean(trial.pretraining_seconds for trial in row),
            selection_seconds=fmean(
                trial.selection_seconds + trial.waited_seconds for trial in row
            ),
            choosing_seconds=fmean(trial.choosing_seconds for trial in row),
            training_seconds=fmean(trial.training_seconds for trial in row),
            total_seconds=fmean(trial.total_seconds for trial in row),
            bytes_sent=fmean(trial.bytes_sent for trial in row),
            reach=reached,
            course=course(row),
            score_name=first.score_name,
        )

    def _rival(self, trial: Trial) -> tuple[Sequence[Trial], str]:
        if trial.strategy in (*FIXED, EVERYTHING):
            return [], ""
        if trial.every and trial.strategy != REDRAWN:
            as_often = [
                other
                for other in self.trials
                if (other.strategy, other.every) == (REDRAWN, trial.every)
            ]
            if as_often:
                return as_often, label(REDRAWN, trial.every)
        return self.random, "random" if self.random else ""


def _mean_where_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _accuracies(trials: Sequence[Trial]) -> dict[Key, float]:
    return {(trial.seed, trial.repeat): trial.test_accuracy for trial in trials}
