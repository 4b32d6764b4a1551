"""Outcomes of a comparison: accuracy, cost and time to a target, as tables and as a verdict.

Rows are compared within a seed, whose trainings share the run, initial weights and order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import TypeVar

from lipt.common.imports import import_extra
from lipt.common.text import format_bytes
from lipt.trainer.comparison.trial import BASELINES, EVERYTHING, FIXED, REDRAWN, SOFT, Trial, label
from lipt.trainer.writing.formatting import format_percent, table_lines

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
    """How soon some trainings reached a target; the means are of those that did."""

    num_trainings: int
    num_reached: int
    steps: float | None
    seconds: float | None

    @property
    def always(self) -> bool:
        return self.num_reached == self.num_trainings


@dataclass(frozen=True)
class Rival:
    """Everything, or resampled random, for as many steps as a row.

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

    difference: to the better fixed random subset; with soft labels, to the same without them.
    subset_accuracy, levelled_off: None where the examples changed, and for everything.
    num_subsets: distinct ones of all seeds.
    target: what the better fixed random subset ends with. reached: how soon it was reached.
    at_chance: the baselines beside it that learned nothing, in words; empty if all learned.
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
    num_subsets: int = 0
    at_chance: str = ""

    @property
    def choosing_seconds(self) -> float:
        return self.pretraining_seconds + self.selection_seconds

    @property
    def label(self) -> str:
        return label(self.strategy)

    @property
    def is_baseline(self) -> bool:
        return self.strategy in BASELINES

    @property
    def is_soft(self) -> bool:
        return self.strategy.endswith(SOFT)

    @property
    def is_chosen(self) -> bool:
        """Whether the verdict is about it: a chosen subset with its labels alone."""
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
        difference=None if name in (*FIXED, EVERYTHING) else difference,
        everything=_rival(row, everything, target),
        redrawn=_rival(row, _of(within, REDRAWN), target),
        subset_accuracy=fmean(on_subset) if len(on_subset) == len(row) else None,
        levelled_off=None
        if plain_name in (EVERYTHING, REDRAWN)
        else all(trial.levelled_off for trial in row),
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
    )


def _at_chance(trials: Sequence[Trial]) -> str:
    """Each baseline with a training that learned nothing, and the worst such score."""
    found: dict[str, float] = {}
    for trial in trials:
        if trial.strategy in BASELINES and not trial.learned:
            worst = min(trial.test_accuracy, found.get(trial.strategy, inf))
            found[trial.strategy] = worst
    if not found:
        return ""
    scores = [f"{label(name)} reaches {format_percent(score)}" for name, score in found.items()]
    return f"{_and(scores)}, chance is {format_percent(trials[0].chance)}"


def _rival(row: Sequence[Trial], rivals: Sequence[Trial], target: float | None) -> Rival:
    difference = later = None
    if rivals and rivals[0].strategy != row[0].strategy:
        difference = paired_difference(_accuracies(row), _accuracies(rivals))
    ours, theirs = (
        {seed: seconds for seed, (_, seconds) in _times(found, target).items()}
        for found in (row, rivals)
    )
    if len(ours) == len(row) and len(theirs) == len(rivals):
        later = paired_difference(ours, theirs)
    return Rival(difference, _reached(rivals, target), later)


def _times(trials: Sequence[Trial], target: float | None) -> dict[int, tuple[int, float]]:
    """Steps and seconds until each training reached the target, by its seed."""
    found = {} if target is None else {trial.seed: trial.reached(target) for trial in trials}
    return {seed: when for seed, when in found.items() if when is not None}


def _reached(trials: Sequence[Trial], target: float | None) -> Reached | None:
    if target is None or not trials or not all(trial.looks for trial in trials):
        return None
    found = _times(trials, target).values()
    if not found:
        return Reached(len(trials), 0, None, None)
    steps, seconds = map(fmean, zip(*found, strict=True))
    return Reached(len(trials), len(found), steps, seconds)


def _of(trials: Sequence[Trial], strategy: str) -> list[Trial]:
    return [trial for trial in trials if trial.strategy == strategy]


def _accuracies(trials: Sequence[Trial]) -> dict[int, float]:
    return {trial.seed: trial.test_accuracy for trial in trials}


Cells = dict[str, str]


def cells(row: Outcome) -> Cells:
    """One outcome by the columns of the first table."""
    return {
        "fraction": _fraction(row.fraction),
        "strategy": row.label,
        row.score_name: f"{format_percent(row.mean_accuracy)} +- {100 * row.std_accuracy:.1f}",
        "to random (95% interval)": _difference(row.difference)
        + (" to without" if row.is_soft and row.difference else ""),
        "seeds": str(row.num_seeds),
        "on the subset": "-"
        if row.subset_accuracy is None
        else format_percent(row.subset_accuracy),
        "converged": {True: "yes", False: "no", None: "-"}[row.levelled_off],
        "steps": str(row.num_steps),
        "total time": _time(row.choosing_seconds + row.training_seconds),
        "sent": format_bytes(round(row.bytes_sent)) if row.bytes_sent else "-",
    }


def instead(rows: Sequence[Outcome]) -> list[Cells]:
    """The rows beside what people would do instead; empty where nothing of it was measured."""
    everything = next((row for row in rows if row.strategy == EVERYTHING), None)
    found: list[Cells] = []
    for fraction in dict.fromkeys(row.fraction for row in rows if row.strategy != EVERYTHING):
        within = [row for row in rows if row.fraction == fraction and row.strategy != EVERYTHING]
        found += [
            _instead(row)
            for row in within
            if row.everything.difference or row.redrawn.difference or row.reached
        ]
        first = next((row for row in within if row.reached and row.everything.reached), None)
        if first and everything:
            row = replace(everything, target=first.target, reached=first.everything.reached)
            alone = Rival(None, None, None)
            found.append(_instead(replace(row, everything=alone, redrawn=alone)))
    return found


def _instead(row: Outcome) -> Cells:
    times, reached = ["-"] * 5, row.reached
    if row.target is not None and reached is not None:
        times = [
            format_percent(row.target),
            f"{reached.num_reached} of {reached.num_trainings}",
            "-" if reached.steps is None else f"{reached.steps:.0f}",
            "-" if reached.seconds is None else _time(reached.seconds),
            _time(row.choosing_seconds),
        ]
    names = ("target", "reached in", "steps till then", "time till then", "choosing")
    return {
        "fraction": _fraction(row.fraction),
        "strategy": row.label,
        "to everything (95% interval)": _difference(row.everything.difference),
        "to resampled random (95% interval)": _difference(row.redrawn.difference),
        **dict(zip(names, times, strict=True)),
    }


def plain(rows: Sequence[Outcome]) -> list[str]:
    """The lines of both tables on a terminal."""
    lines: list[str] = []
    for found in ([cells(row) for row in rows], instead(rows)):
        if found:
            lines += ["", *table_lines(list(found[0]), [list(each.values()) for each in found])]
    return lines[1:]


def _fraction(fraction: float) -> str:
    return format_percent(fraction).replace(".0%", "%")


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    mean, low, high = (
        f"{100 * value:+.1f}" for value in (difference.mean, difference.low, difference.high)
    )
    return f"{mean} ({low} to {high})" if difference.bounded else mean


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"


@dataclass(frozen=True)
class Answers:
    """The verdict on one fraction; a text is empty where nothing was measured for it.

    learned: whether every baseline learned something; without that there is no verdict.
    """

    fraction: float
    better: str
    beats_random: bool = False
    faster: str = ""
    cost: str = ""
    learned: bool = True


def answers(rows: Sequence[Outcome]) -> list[Answers]:
    found = []
    subsets = (row for row in rows if row.strategy not in (EVERYTHING, EVERYTHING + SOFT))
    for fraction in sorted({row.fraction for row in subsets}):
        within = [row for row in rows if row.fraction == fraction]
        chosen = [row for row in within if row.is_chosen]
        if at_chance := within[0].at_chance:
            found.append(Answers(fraction, _nothing_learned(fraction, at_chance), learned=False))
            continue
        if not chosen:
            found.append(Answers(fraction, f"{_at(fraction)} nothing was chosen."))
            continue
        # One that beats random before one that may only have been lucky.
        best = max(chosen, key=lambda row: (row.beats_random, row.mean_accuracy))
        better = _better(best, chosen) + _rising(within) + _repeated(chosen)
        found.append(Answers(fraction, better, best.beats_random, _faster(best), _cost(best)))
    return found


def verdict(rows: Sequence[Outcome]) -> str:
    texts = (text for found in answers(rows) for text in (found.better, found.faster, found.cost))
    return "\n".join(filter(None, texts))


def _nothing_learned(fraction: float, at_chance: str) -> str:
    return (
        f"{_at(fraction)} this recipe does not learn here: {at_chance}. There is no verdict. Train "
        "for more steps, lower learning_rate, or set augmentation=none."
    )


def _better(best: Outcome, tried: Sequence[Outcome]) -> str:
    at = _at(best.fraction)
    if best.difference is None:
        return f"{at} {best.label} was not compared with a random subset."
    if not best.difference.bounded:
        return f"{at} one seed is too few to tell {best.label} from random."
    others = [row.label for row in tried if row.difference is not None and not row.beats_random]
    if best.beats_random:
        text = f"{at} {best.label} beats random by {_points(best.difference)}"
        also = [row.label for row in tried if row.beats_random and row is not best]
        text += f", and so {_do(also)} {_and(also)}" if also else ""
        return text + (f"; {_and(others)} {_do(others)} not beat it." if others else ".")
    which = "it" if len(others) == 1 else f"the best, {best.label},"
    return (
        f"{at} {_and(others)} {_do(others)} not beat random: {which} differs by "
        f"{_points(best.difference, '+')}."
    )


def _rising(rows: Sequence[Outcome]) -> str:
    rising = [row.label for row in rows if row.levelled_off is False]
    if not rising:
        return ""
    every = len(rising) == sum(row.levelled_off is not None for row in rows)
    whom = "all of them" if every else _and(rising)
    return f" Accuracy on the subset was still rising with {whom}: train longer."


def _repeated(chosen: Sequence[Outcome]) -> str:
    fewer = [
        f"{row.label} {row.num_subsets} of {row.num_seeds}"
        for row in chosen
        if row.num_subsets < row.num_seeds
    ]
    return f" Some seeds gave the same subset; distinct ones: {_and(fewer)}." if fewer else ""


def _faster(best: Outcome) -> str:
    rivals = (EVERYTHING, best.everything), (label(REDRAWN), best.redrawn)
    standing = [_standing(rival.difference, name) for name, rival in rivals if rival.difference]
    if not standing:
        return ""
    text = f"Trained for as many steps, {best.label} is {_and(standing)}."
    own = best.reached
    if own is None or best.target is None:
        return text
    target = format_percent(best.target)
    text += f" To {target}, what random ends with, it takes {_when(own)}, choosing included"
    for name, rival in rivals:
        if rival.reached is not None:
            sooner = _sooner(own, rival.reached, rival.later)
            text += f"; {name} takes {_when(rival.reached)}{sooner}"
    return f"{text}."


def _standing(difference: Difference, rival: str) -> str:
    if not difference.bounded:
        return f"{100 * difference.mean:+.1f} points from {rival} (one seed tells nothing)"
    if difference.low > 0:
        return f"better than {rival} by {_points(difference)}"
    if difference.high < 0:
        less = Difference(-difference.mean, -difference.high, -difference.low, difference.num_seeds)
        return f"worse than {rival} by {_points(less)}"
    return f"not told apart from {rival}, at {_points(difference, '+')}"


def _when(reached: Reached) -> str:
    if reached.seconds is None or reached.steps is None:
        return f"more than all steps in each of {reached.num_trainings} trainings"
    text = f"{_time(reached.seconds)} ({reached.steps:.0f} steps)"
    if not reached.always:
        text += f" in {reached.num_reached} of {reached.num_trainings} trainings, and never else"
    return text


def _sooner(own: Reached, theirs: Reached, later: Difference | None) -> str:
    if later is None:
        if own.always and not theirs.num_reached:
            return ", so choosing is faster"
        if theirs.always and not own.num_reached:
            return ", so choosing is slower"
        return ", so neither is shown to be faster"
    if not later.bounded:
        return ""
    if later.low <= 0 <= later.high:
        return ", so neither is shown to be faster"
    low, high = sorted((abs(later.low), abs(later.high)))
    return (
        f", so choosing is {'faster' if later.high < 0 else 'slower'} by "
        f"{_time(abs(later.mean))} (95% interval {_time(low)} to {_time(high)}, "
        f"{later.num_seeds} seeds)"
    )


def _cost(best: Outcome) -> str:
    times = best.choosing_seconds / max(best.training_seconds, 1e-9)
    share = f"{times:.1f} times" if times >= 2 else f"{times:.0%} of"
    return (
        f"Choosing with {best.strategy} cost {_time(best.choosing_seconds)} "
        f"({_time(best.pretraining_seconds)} of pre-training and "
        f"{_time(best.selection_seconds)} of selection), {share} the "
        f"{_time(best.training_seconds)} of main training; it is paid once, however "
        "often the subset is trained on."
    )


def _at(fraction: float) -> str:
    return f"At {100 * fraction:g}%"


def _points(difference: Difference, sign: str = "") -> str:
    values = difference.mean, difference.low, difference.high
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in values)
    return f"{mean} points (95% interval {low} to {high}, {difference.num_seeds} seeds)"


def _and(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _do(names: Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"
