"""Outcomes of a comparison: accuracy, cost and time to a target, over all seeds.

Differences are taken within a seed, whose trainings share run, initial weights and order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import TypeVar

from lipt.common.imports import import_extra
from lipt.trainer.comparison.trial import (
    BASELINES,
    EVERYTHING,
    FIXED,
    RESAMPLED,
    SOFT,
    UNTRAINED,
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
        return isfinite(self.low)


def paired_difference(
    values: Mapping[KeyT, float], baseline: Mapping[KeyT, float]
) -> Difference | None:
    """The mean difference and Student's 95% interval over the keys (seeds) that both have."""
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
    """How soon trainings reached a target; the means are over those that did."""

    num_trainings: int
    num_reached: int
    steps: float | None
    seconds: float | None


@dataclass(frozen=True)
class Gap:
    """Differences to a baseline that costs no selection, for equally many steps.

    accuracy: the row's minus the baseline's.
    seconds: the same for the time to the row's target; None unless all trainings reach it.
    """

    accuracy: Difference | None = None
    seconds: Difference | None = None


@dataclass(frozen=True)
class Outcome:
    """One strategy or baseline at one fraction over all seeds; costs are means.

    difference: to the better fixed random subset; with soft labels, to the same row without them.
    everything, resampled: gaps to training on all examples, and on resampled random ones.
    subset_accuracy, converged: None where the examples change, and for all examples.
    num_subsets: number of distinct subsets over all seeds.
    target: final accuracy of the better fixed random subset. reached: how soon it is reached.
    at_chance: baselines at its fraction that learned nothing, with their worst score; the score of
    a constant answer is `chance`.
    loss: on a target's held-out texts; exact_match: share of right completions of them.
    """

    strategy: str
    fraction: float
    num_seeds: int
    mean_accuracy: float
    std_accuracy: float
    difference: Difference | None
    everything: Gap
    resampled: Gap
    subset_accuracy: float | None
    converged: bool | None
    num_steps: int
    pretraining_seconds: float
    selection_seconds: float
    training_seconds: float
    bytes_sent: float
    target: float | None
    reached: Reached | None
    score_name: str = "accuracy"
    num_subsets: int = 0
    at_chance: Mapping[str, float] = field(default_factory=dict)
    chance: float = 0.0
    loss: Difference | None = None
    exact_match: float | None = None

    @property
    def choosing_seconds(self) -> float:
        return self.pretraining_seconds + self.selection_seconds

    @property
    def label(self) -> str:
        return label(self.strategy)

    @property
    def is_baseline(self) -> bool:
        return self.strategy in (*BASELINES, UNTRAINED)

    @property
    def is_soft(self) -> bool:
        return self.strategy.endswith(SOFT)

    @property
    def is_chosen(self) -> bool:
        """Whether it is a strategy's subset without soft labels; the verdict is about these."""
        return not self.is_baseline and not self.is_soft

    @property
    def beats_random(self) -> bool:
        """Whether zero lies below the interval of a chosen subset, and all baselines learned."""
        better = self.is_chosen and self.difference and self.difference.low > 0
        return bool(better and not self.at_chance)


def outcomes(trials: Sequence[Trial]) -> list[Outcome]:
    """One row per fraction and strategy: baselines, strategies, soft labels; each best first."""
    everything = _of(trials, EVERYTHING)
    rows: list[Outcome] = []
    for fraction in sorted({trial.fraction for trial in trials}):
        within = [trial for trial in trials if trial.fraction == fraction]
        names = dict.fromkeys(trial.strategy for trial in within)
        of_fraction = [_outcome(_of(within, name), within, everything) for name in names]
        rows += sorted(
            of_fraction, key=lambda row: (row.is_soft, not row.is_baseline, -row.mean_accuracy)
        )
    return rows


def _outcome(row: Sequence[Trial], within: Sequence[Trial], everything: Sequence[Trial]) -> Outcome:
    name, accuracies = row[0].strategy, _accuracies(row)
    fixed = (_of(within, random) for random in FIXED)
    random = max(fixed, key=lambda trials: fmean(_accuracies(trials).values()) if trials else -inf)
    target = fmean(_accuracies(random).values()) if random else None
    plain_name = name.removesuffix(SOFT)
    without = random if name == plain_name else _of(within, plain_name)
    difference = paired_difference(accuracies, _accuracies(without))
    on_subset = [trial.subset_accuracy for trial in row if trial.subset_accuracy is not None]
    return Outcome(
        strategy=name,
        fraction=row[0].fraction,
        num_seeds=len(row),
        mean_accuracy=fmean(accuracies.values()),
        std_accuracy=stdev(accuracies.values()) if len(row) > 1 else 0.0,
        difference=None if name in (*FIXED, EVERYTHING, UNTRAINED) else difference,
        everything=_gap(row, everything, target),
        resampled=_gap(row, _of(within, RESAMPLED), target),
        subset_accuracy=fmean(on_subset) if len(on_subset) == len(row) else None,
        converged=None
        if plain_name in (EVERYTHING, RESAMPLED, UNTRAINED)
        else all(trial.converged for trial in row),
        num_steps=row[0].num_steps,
        pretraining_seconds=fmean(trial.pretraining_seconds for trial in row),
        selection_seconds=fmean(trial.selection_seconds for trial in row),
        training_seconds=fmean(trial.training_seconds for trial in row),
        bytes_sent=fmean(trial.bytes_sent for trial in row),
        target=target,
        reached=_reached(row, target),
        score_name=row[0].score_name,
        num_subsets=len({trial.digest for trial in row}),
        at_chance=_at_chance([*everything, *within]),
        chance=(*everything, *within)[0].chance,
        loss=_loss(row),
        exact_match=_exact_match(row),
    )


def _loss(row: Sequence[Trial]) -> Difference | None:
    """The mean loss with its 95% interval over seeds; over test texts with one seed."""
    losses = {trial.seed: trial.test_loss for trial in row if trial.test_loss is not None}
    if not losses:
        return None
    if len(losses) == 1:
        (mean,), margin = losses.values(), 1.96 * row[0].test_loss_error
        return Difference(mean, mean - margin, mean + margin)
    return paired_difference(losses, dict.fromkeys(losses, 0.0))


def _exact_match(row: Sequence[Trial]) -> float | None:
    matches = [trial.exact_match for trial in row if trial.exact_match is not None]
    return fmean(matches) if matches else None


def _at_chance(trials: Sequence[Trial]) -> dict[str, float]:
    """The worst score of each baseline with a training that learned nothing."""
    worst_scores: dict[str, float] = {}
    for trial in trials:
        if trial.strategy in BASELINES and not trial.learned:
            worst = min(trial.test_accuracy, worst_scores.get(trial.strategy, inf))
            worst_scores[trial.strategy] = worst
    return worst_scores


def _gap(row: Sequence[Trial], baseline: Sequence[Trial], target: float | None) -> Gap:
    if not baseline or baseline[0].strategy == row[0].strategy:
        return Gap()
    ours, theirs = (
        {seed: seconds for seed, (_, seconds) in _times(trials, target).items()}
        for trials in (row, baseline)
    )
    complete = len(ours) == len(row) and len(theirs) == len(baseline)
    return Gap(
        paired_difference(_accuracies(row), _accuracies(baseline)),
        paired_difference(ours, theirs) if complete else None,
    )


def _times(trials: Sequence[Trial], target: float | None) -> dict[int, tuple[int, float]]:
    by_seed = {} if target is None else {trial.seed: trial.reached(target) for trial in trials}
    return {seed: when for seed, when in by_seed.items() if when is not None}


def _reached(trials: Sequence[Trial], target: float | None) -> Reached | None:
    if target is None or not all(trial.evaluations for trial in trials):
        return None
    times = _times(trials, target).values()
    steps, seconds = map(fmean, zip(*times, strict=True)) if times else (None, None)
    return Reached(len(trials), len(times), steps, seconds)


def _of(trials: Sequence[Trial], strategy: str) -> list[Trial]:
    return [trial for trial in trials if trial.strategy == strategy]


def _accuracies(trials: Sequence[Trial]) -> dict[int, float]:
    return {trial.seed: trial.test_accuracy for trial in trials}
