"""Outcomes of a comparison: accuracy, cost and time to a target, as tables and as a verdict.

Differences are taken within a seed, whose trainings share run, initial weights and order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import TypeVar

from lipt.common.imports import import_extra
from lipt.common.text import format_bytes
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
from lipt.trainer.formatting import table_lines

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
    at_chance: baselines at its fraction that learned nothing, as text; empty if all learned.
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
    at_chance: str = ""
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
        found = [_outcome(_of(within, name), within, everything) for name in names]
        rows += sorted(
            found, key=lambda row: (row.is_soft, not row.is_baseline, -row.mean_accuracy)
        )
    return rows


def _outcome(row: Sequence[Trial], within: Sequence[Trial], everything: Sequence[Trial]) -> Outcome:
    name, accuracies = row[0].strategy, _accuracies(row)
    fixed = (_of(within, random) for random in FIXED)
    random = max(fixed, key=lambda found: fmean(_accuracies(found).values()) if found else -inf)
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
    found = [trial.exact_match for trial in row if trial.exact_match is not None]
    return fmean(found) if found else None


def _at_chance(trials: Sequence[Trial]) -> str:
    """Each baseline with a training that learned nothing, and the worst such score."""
    found: dict[str, float] = {}
    for trial in trials:
        if trial.strategy in BASELINES and not trial.learned:
            worst = min(trial.test_accuracy, found.get(trial.strategy, inf))
            found[trial.strategy] = worst
    if not found:
        return ""
    scores = [f"{label(name)} reaches {score:.1%}" for name, score in found.items()]
    return f"{_and(scores)}, chance is {trials[0].chance:.1%}"


def _gap(row: Sequence[Trial], baseline: Sequence[Trial], target: float | None) -> Gap:
    if not baseline or baseline[0].strategy == row[0].strategy:
        return Gap()
    ours, theirs = (
        {seed: seconds for seed, (_, seconds) in _times(found, target).items()}
        for found in (row, baseline)
    )
    complete = len(ours) == len(row) and len(theirs) == len(baseline)
    return Gap(
        paired_difference(_accuracies(row), _accuracies(baseline)),
        paired_difference(ours, theirs) if complete else None,
    )


def _times(trials: Sequence[Trial], target: float | None) -> dict[int, tuple[int, float]]:
    found = {} if target is None else {trial.seed: trial.reached(target) for trial in trials}
    return {seed: when for seed, when in found.items() if when is not None}


def _reached(trials: Sequence[Trial], target: float | None) -> Reached | None:
    if target is None or not all(trial.evaluations for trial in trials):
        return None
    found = _times(trials, target).values()
    steps, seconds = map(fmean, zip(*found, strict=True)) if found else (None, None)
    return Reached(len(trials), len(found), steps, seconds)


def _of(trials: Sequence[Trial], strategy: str) -> list[Trial]:
    return [trial for trial in trials if trial.strategy == strategy]


def _accuracies(trials: Sequence[Trial]) -> dict[int, float]:
    return {trial.seed: trial.test_accuracy for trial in trials}


Cells = dict[str, str]


def cells(row: Outcome) -> Cells:
    return {
        "fraction": _fraction(row.fraction),
        "strategy": row.label,
        row.score_name: f"{row.mean_accuracy:.1%} +- {100 * row.std_accuracy:.1f}",
        **_cells_of_texts(row),
        "to random (95% interval)": _difference(row.difference)
        + (" to without" if row.is_soft and row.difference else ""),
        "seeds": str(row.num_seeds),
        "on the subset": "-" if row.subset_accuracy is None else f"{row.subset_accuracy:.1%}",
        "converged": {True: "yes", False: "no", None: "-"}[row.converged],
        "steps": str(row.num_steps),
        "total time": _time(row.choosing_seconds + row.training_seconds),
        "sent": format_bytes(round(row.bytes_sent)) if row.bytes_sent else "-",
    }


def _cells_of_texts(row: Outcome) -> Cells:
    if row.loss is None:
        return {}
    found = {"loss (95% interval)": _loss_text(row.loss)}
    if row.exact_match is not None:
        found["exact match"] = f"{row.exact_match:.1%}"
    return found


def _loss_text(loss: Difference) -> str:
    interval = f" ({loss.low:.3f} to {loss.high:.3f})" if loss.bounded else ""
    return f"{loss.mean:.3f}{interval}"


def alternatives(rows: Sequence[Outcome]) -> list[Cells]:
    """Rows beside baselines that cost no selection; empty where none of these was trained."""
    return [
        _alternative(row)
        for row in rows
        if row.everything.accuracy or row.resampled.accuracy or row.reached
    ]


def _alternative(row: Outcome) -> Cells:
    times, reached = ["-"] * 5, row.reached
    if row.target is not None and reached is not None:
        times = [
            f"{row.target:.1%}",
            f"{reached.num_reached} of {reached.num_trainings}",
            "-" if reached.steps is None else f"{reached.steps:.0f}",
            "-" if reached.seconds is None else _time(reached.seconds),
            _time(row.choosing_seconds),
        ]
    names = ("target", "reached in", "steps till then", "time till then", "choosing")
    return {
        "fraction": _fraction(row.fraction),
        "strategy": row.label,
        "to everything (95% interval)": _difference(row.everything.accuracy),
        "to resampled random (95% interval)": _difference(row.resampled.accuracy),
        **dict(zip(names, times, strict=True)),
    }


def text_tables(rows: Sequence[Outcome]) -> list[str]:
    lines: list[str] = []
    for found in ([cells(row) for row in rows], alternatives(rows)):
        if found:
            lines += ["", *table_lines(list(found[0]), [list(each.values()) for each in found])]
    return lines[1:]


def _fraction(fraction: float) -> str:
    return f"{fraction:.1%}".replace(".0%", "%")


def _difference(difference: Difference | None, *, scale: float = 100.0, unit: str = "") -> str:
    """A difference with its interval, by default in points."""
    if difference is None:
        return "-"
    mean, low, high = (
        f"{scale * value:+.1f}" for value in (difference.mean, difference.low, difference.high)
    )
    return f"{mean}{unit} ({low} to {high})" if difference.bounded else f"{mean}{unit}"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"


@dataclass(frozen=True)
class Contrast:
    """A chosen subset's difference to a baseline: in accuracy, or in seconds to a target."""

    strategy: str
    fraction: float
    baseline: str
    difference: Difference
    target: float | None = None

    @property
    def result(self) -> str:
        if self.difference.low <= 0 <= self.difference.high:
            return "unclear"
        more, less = ("better", "worse") if self.target is None else ("slower", "faster")
        return more if self.difference.low > 0 else less

    def cells(self) -> Cells:
        beside, difference = self.baseline, _difference(self.difference)
        if self.target is not None:
            beside = f"{beside}, to {self.target:.1%}"
            difference = _difference(self.difference, scale=1.0, unit=" s")
        return {
            "subset": f"{self.strategy} {_fraction(self.fraction)}",
            "beside": beside,
            "difference (95% interval)": difference,
            "result": self.result,
        }


@dataclass(frozen=True)
class Verdict:
    """The verdict on one fraction: a sentence, the differences behind it, and notes.

    learned: whether every baseline learned something; otherwise there is no verdict.
    """

    fraction: float
    sentence: str
    beats_random: bool = False
    contrasts: tuple[Contrast, ...] = ()
    notes: tuple[str, ...] = ()
    learned: bool = True


def answers(rows: Sequence[Outcome]) -> list[Verdict]:
    found = []
    others = (EVERYTHING, EVERYTHING + SOFT, UNTRAINED)
    subsets = (row for row in rows if row.strategy not in others)
    for fraction in sorted({row.fraction for row in subsets}):
        within = [row for row in rows if row.fraction == fraction]
        chosen = [row for row in within if row.is_chosen]
        if at_chance := within[0].at_chance:
            found.append(Verdict(fraction, _nothing_learned(fraction, at_chance), learned=False))
            continue
        if not chosen:
            found.append(Verdict(fraction, f"{_at(fraction)} nothing was chosen."))
            continue
        # A strategy that beats random comes before one with a higher mean alone.
        best = max(chosen, key=lambda row: (row.beats_random, row.mean_accuracy))
        contrasts = tuple(_contrasts(best, chosen))
        rival = _rival(best, [*within, *(row for row in rows if row.strategy in others)])
        notes = tuple(filter(None, (rival, _cost(best), _rising(within), _repeated(chosen))))
        found.append(
            Verdict(fraction, _sentence(best, chosen), best.beats_random, contrasts, notes)
        )
    return found


def verdict(rows: Sequence[Outcome]) -> str:
    """A sentence for each fraction, a table of all differences, and notes."""
    found = answers(rows)
    lines = [answer.sentence for answer in found]
    if table := [row.cells() for answer in found for row in answer.contrasts]:
        lines += table_lines(list(table[0]), [list(row.values()) for row in table])
    return "\n".join([*lines, *(note for answer in found for note in answer.notes)])


def _contrasts(best: Outcome, chosen: Sequence[Outcome]) -> Iterator[Contrast]:
    """All of the best subset's differences, and of the other ones those to random."""
    gaps = (EVERYTHING, best.everything), ("resampled", best.resampled)
    for row in (best, *(row for row in chosen if row is not best)):
        if row.difference is not None:
            yield Contrast(row.strategy, row.fraction, "random", row.difference)
        for name, gap in gaps if row is best else ():
            if gap.accuracy is not None:
                yield Contrast(row.strategy, row.fraction, name, gap.accuracy)
        for name, gap in gaps if row is best else ():
            if gap.seconds is not None:
                yield Contrast(row.strategy, row.fraction, name, gap.seconds, best.target)


def _nothing_learned(fraction: float, at_chance: str) -> str:
    return (
        f"{_at(fraction)} this recipe does not learn here: {at_chance}. There is no verdict. Train "
        "for more steps, lower learning_rate, or set augmentation=none."
    )


def _sentence(best: Outcome, chosen: Sequence[Outcome]) -> str:
    at, difference = _at(best.fraction), best.difference
    if difference is None:
        return f"{at} {best.label} was not compared with a random subset."
    if not difference.bounded:
        return f"{at} one seed is too few to tell {best.label} from random."
    sign = "" if best.beats_random else "+"
    mean, low, high = (
        f"{100 * value:{sign}.1f}" for value in (difference.mean, difference.low, difference.high)
    )
    points = f"{mean} points (95% interval {low} to {high}, {difference.num_seeds} seeds)"
    if best.beats_random:
        return f"{at} {best.label} beats random by {points}."
    if len(chosen) == 1:
        return f"{at} {best.label} does not beat random: it differs by {points}."
    return f"{at} no strategy beats random: the best, {best.label}, differs by {points}."


def _rival(best: Outcome, rows: Sequence[Outcome]) -> str:
    """The row of texts with the least loss among those that cost no choice."""
    cheap = [row for row in rows if row.is_baseline and row.loss is not None]
    if best.loss is None or not cheap:
        return ""
    rival = min(cheap, key=lambda row: row.loss.mean if row.loss else inf)
    assert rival.loss is not None  # noqa: S101 - it was sorted by it
    less = "less" if best.loss.mean < rival.loss.mean else "no less"
    return (
        f"{_at(best.fraction)} the best rival without a choice is {rival.label}: its loss is "
        f"{_loss_text(rival.loss)}, and that of {best.label} is {less}, {_loss_text(best.loss)}."
    )


def _rising(rows: Sequence[Outcome]) -> str:
    rising = [row.label for row in rows if row.converged is False]
    if not rising:
        return ""
    every = len(rising) == sum(row.converged is not None for row in rows)
    whom = "all of them" if every else _and(rising)
    at = _at(rows[0].fraction)
    return f"{at} accuracy on the subset was still rising with {whom}: train longer."


def _repeated(chosen: Sequence[Outcome]) -> str:
    fewer = [
        f"{row.label} {row.num_subsets} of {row.num_seeds}"
        for row in chosen
        if row.num_subsets < row.num_seeds
    ]
    if not fewer:
        return ""
    at = _at(chosen[0].fraction)
    return f"{at} some seeds gave the same subset; distinct ones: {_and(fewer)}."


def _cost(best: Outcome) -> str:
    return (
        f"{_at(best.fraction)} choosing with {best.strategy} took {_time(best.choosing_seconds)}, "
        f"once: {_time(best.pretraining_seconds)} of pre-training and "
        f"{_time(best.selection_seconds)} of selection. Main training took "
        f"{_time(best.training_seconds)}."
    )


def _at(fraction: float) -> str:
    return f"At {100 * fraction:g}%"


def _and(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
