"""Verdict of a comparison: outcomes per strategy, and one plain sentence about them.

The seeds are those of the whole pipeline, so the same seed's random subset is the pair of
a strategy's: differences are taken within a seed, which removes what the seeds have in
common, and their confidence interval is Student's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import fmean, stdev

from lipt.common.imports.extras import import_extra
from lipt.trainer.comparison.trial import BASELINES, Trial

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Accuracy minus random's, paired by seed; the interval is infinite with one pair."""

    mean: float
    low: float
    high: float

    @property
    def bounded(self) -> bool:
        """Whether there is an interval to speak of."""
        return isfinite(self.low)


@dataclass(frozen=True)
class Outcome:
    """One strategy at one fraction over all seeds.

    difference: to the better of the two random baselines; None for these.
    """

    strategy: str
    fraction: float
    num_seeds: int
    mean_accuracy: float
    std_accuracy: float
    difference: Difference | None
    subset_accuracy: float
    levelled_off: bool
    num_steps: int
    total_seconds: float
    bytes_sent: float

    @property
    def beats_random(self) -> bool:
        """Whether zero lies below the interval."""
        return self.difference is not None and self.difference.low > 0


def outcomes(trials: Sequence[Trial]) -> list[Outcome]:
    """One row per fraction and strategy: the baselines first, then the best first."""
    rows: list[Outcome] = []
    for fraction in sorted({trial.fraction for trial in trials}):
        of_fraction = [trial for trial in trials if trial.fraction == fraction]
        random = _better_baseline(of_fraction)
        found = [
            _outcome([trial for trial in of_fraction if trial.strategy == strategy], random)
            for strategy in dict.fromkeys(trial.strategy for trial in of_fraction)
        ]
        rows += sorted(found, key=lambda row: (row.difference is not None, -row.mean_accuracy))
    return rows


def paired_difference(
    accuracies: dict[int, float], baseline: dict[int, float], confidence: float = _CONFIDENCE
) -> Difference:
    """The mean difference and its confidence interval, over the seeds that both have.

    Args:
        accuracies: by seed.
        baseline: by seed.
        confidence: in (0, 1).

    Raises:
        MissingExtraError: scipy, which has Student's distribution, is not installed.
    """
    seeds = sorted(accuracies.keys() & baseline.keys())
    differences = [accuracies[seed] - baseline[seed] for seed in seeds]
    mean = fmean(differences)
    if len(differences) < 2:
        return Difference(mean, -inf, inf)
    stats = import_extra(
        "scipy.stats", package="scipy", extra="report", needed_for="a confidence interval"
    )
    quantile = float(stats.t.ppf((1 + confidence) / 2, df=len(differences) - 1))
    margin = quantile * stdev(differences) / sqrt(len(differences))
    return Difference(mean, mean - margin, mean + margin)


def verdict(rows: Sequence[Outcome]) -> str:
    """One sentence per fraction: what beats random, by how much, or that nothing does."""
    return " ".join(
        _sentence(fraction, [row for row in rows if row.fraction == fraction])
        for fraction in sorted({row.fraction for row in rows})
    )


def _sentence(fraction: float, rows: list[Outcome]) -> str:
    tried = [row for row in rows if row.difference is not None]
    if not tried:
        return f"At {fraction:.0%} only random subsets were tried."
    best = max(tried, key=lambda row: row.mean_accuracy)
    if best.num_seeds < 2:
        text = f"At {fraction:.0%} one seed is too few to tell {best.strategy} from random."
    elif best.beats_random:
        text = f"At {fraction:.0%} {best.strategy} beats random by {_interval(best)}"
        also = [row.strategy for row in tried if row.beats_random and row is not best]
        text += f", and so {_do(also)} {_and(also)}" if also else ""
        others = [row.strategy for row in tried if not row.beats_random]
        text += f"; {_and(others)} {_do(others)} not beat random." if others else "."
    else:
        names = [row.strategy for row in tried if not row.beats_random]
        text = f"At {fraction:.0%} {_and(names)} {_do(names)} not beat random: "
        text += "it" if len(names) == 1 else f"the best, {best.strategy},"
        text += f" differs by {_interval(best, '+')}."
    rising = [row.strategy for row in rows if not row.levelled_off]
    if rising:
        whom = "all of them" if len(rising) == len(rows) else _and(rising)
        text += f" Accuracy on the subset was still rising with {whom}: train longer."
    return text


def _interval(row: Outcome, sign: str = "") -> str:
    if row.difference is None:
        return ""
    mean, low, high = (
        f"{100 * value:{sign}.1f}"
        for value in (row.difference.mean, row.difference.low, row.difference.high)
    )
    return f"{mean} points (95% interval {low} to {high}, {row.num_seeds} seeds)"


def _and(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _do(names: Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"


def _better_baseline(trials: Sequence[Trial]) -> dict[int, float]:
    by_strategy = [
        {trial.seed: trial.test_accuracy for trial in trials if trial.strategy == name}
        for name in BASELINES
    ]
    return max(by_strategy, key=lambda found: fmean(found.values()) if found else -inf)


def _outcome(trials: Sequence[Trial], random: dict[int, float]) -> Outcome:
    accuracies = {trial.seed: trial.test_accuracy for trial in trials}
    first = trials[0]
    compared = first.strategy not in BASELINES and accuracies.keys() & random.keys()
    return Outcome(
        strategy=first.strategy,
        fraction=first.fraction,
        num_seeds=len(trials),
        mean_accuracy=fmean(accuracies.values()),
        std_accuracy=stdev(accuracies.values()) if len(trials) > 1 else 0.0,
        difference=paired_difference(accuracies, random) if compared else None,
        subset_accuracy=fmean(trial.subset_accuracy for trial in trials),
        levelled_off=all(trial.levelled_off for trial in trials),
        num_steps=first.num_steps,
        total_seconds=fmean(trial.total_seconds for trial in trials),
        bytes_sent=fmean(trial.bytes_sent for trial in trials),
    )
