"""Verdict of a comparison: answers to three questions that a user has, in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lipt.trainer.comparison.baselines import EVERYTHING, REDRAWN, label
from lipt.trainer.comparison.intervals import Difference
from lipt.trainer.comparison.outcomes import Outcome, Reach, Reached
from lipt.trainer.writing.formatting import format_percent

_REDRAWN = label(REDRAWN, 1)


@dataclass(frozen=True)
class Answers:
    """What is to be said of one fraction; a text is empty where nothing was measured for it."""

    fraction: float
    every: int
    better: str
    beats_random: bool
    faster: str
    cost: str

    @property
    def texts(self) -> list[str]:
        """The answers that there are, in order."""
        return [text for text in (self.better, self.faster, self.cost) if text]


def answers(rows: Sequence[Outcome]) -> list[Answers]:
    """What the outcomes say, for each fraction and way of choosing."""
    found = []
    for fraction in sorted({row.fraction for row in rows if row.strategy != EVERYTHING}):
        within = [row for row in rows if row.fraction == fraction]
        chosen = [row for row in within if not row.is_baseline]
        if not chosen:
            text = f"{_at(fraction)} nothing was chosen."
            found.append(Answers(fraction, 0, text, beats_random=False, faster="", cost=""))
        for every in sorted({row.every for row in chosen}):
            tried = [row for row in chosen if row.every == every]
            # One that beats random before one that may only have been lucky.
            best = max(tried, key=lambda row: (row.beats_random, row.mean_accuracy))
            fixed = [row for row in within if row.is_baseline]
            found.append(
                Answers(
                    fraction,
                    every,
                    better=_better(best, tried) + _rising([*fixed, *tried]),
                    beats_random=any(row.beats_random for row in tried),
                    faster=_faster(best),
                    cost=_cost(best),
                )
            )
    return found


def verdict(rows: Sequence[Outcome]) -> str:
    """All answers, a line for each."""
    return "\n".join(text for found in answers(rows) for text in found.texts)


def _better(best: Outcome, tried: Sequence[Outcome]) -> str:
    compared = [row for row in tried if row.difference is not None]
    at = _at(best.fraction)
    if best.difference is None:
        return f"{at} {best.label} was not compared with a random subset."
    if not best.difference.bounded:
        return f"{at} one seed is too few to tell {best.label} from {best.rival}."
    if best.beats_random:
        text = f"{at} {best.label} beats {best.rival} by {_points(best.difference)}"
        also = [row.label for row in compared if row.beats_random and row is not best]
        text += f", and so {_do(also)} {_and(also)}" if also else ""
        others = [row.label for row in compared if not row.beats_random]
        return text + (f"; {_and(others)} {_do(others)} not beat it." if others else ".")
    names = [row.label for row in compared if not row.beats_random]
    text = f"{at} {_and(names)} {_do(names)} not beat {best.rival}: "
    text += "it" if len(names) == 1 else f"the best, {best.label},"
    needed = best.difference.num_needed
    more = "" if needed is None else f"; about {needed} would tell one point"
    return f"{text} differs by {_points(best.difference, '+', more)}."


def _rising(rows: Sequence[Outcome]) -> str:
    rising = [row.label for row in rows if row.levelled_off is False]
    if not rising:
        return ""
    asked = [row for row in rows if row.levelled_off is not None]
    whom = "all of them" if len(rising) == len(asked) else _and(rising)
    return f" Accuracy on the subset was still rising with {whom}: train longer."


def _faster(best: Outcome) -> str:
    rivals = (EVERYTHING, best.to_everything), (_REDRAWN, best.to_redrawn)
    standing = [
        _standing(difference, rival) for rival, difference in rivals if difference is not None
    ]
    if not standing:
        return ""
    text = f"Trained for as many steps, {best.label} is {_and(standing)}."
    return text + (_sooner(best.reach) if best.reach is not None else "")


def _standing(difference: Difference, rival: str) -> str:
    if not difference.bounded:
        return f"{100 * difference.mean:+.1f} points from {rival} (one seed tells nothing)"
    if difference.low > 0:
        return f"better than {rival} by {_points(difference)}"
    if difference.high < 0:
        return f"worse than {rival} by {_points(difference.negated())}"
    return f"not told apart from {rival}, at {_points(difference, '+')}"


def _sooner(reach: Reach) -> str:
    rivals = [
        (EVERYTHING, reach.everything, reach.to_everything),
        (_REDRAWN, reach.redrawn, reach.to_redrawn),
    ]
    target = format_percent(reach.target) + (", what random ends with," if reach.of_random else "")
    text = f" To {target} it takes {_when(reach.own)}, choosing included"
    for rival, theirs, difference in rivals:
        if theirs is not None:
            text += f"; {rival} takes {_when(theirs)}{_which(reach.own, theirs, difference)}"
    return f"{text}."


def _when(reached: Reached) -> str:
    if reached.seconds is None or reached.steps is None:
        return f"more than all steps in each of {reached.num_trainings} trainings"
    text = f"{_seconds(reached.seconds)} ({reached.steps:.0f} steps)"
    if not reached.always:
        text += f" in {reached.num_reached} of {reached.num_trainings} trainings, and never else"
    return text


def _which(own: Reached, theirs: Reached, difference: Difference | None) -> str:
    if difference is None:
        if own.always and not theirs.num_reached:
            return ", so choosing is faster"
        if theirs.always and not own.num_reached:
            return ", so choosing is slower"
        return ", so neither is shown to be faster"
    if not difference.bounded:
        return ""
    interval = f"by {_seconds(abs(difference.mean))} (95% interval "
    low, high = sorted((abs(difference.low), abs(difference.high)))
    interval += f"{_seconds(low)} to {_seconds(high)}, {difference.basis})"
    if difference.high < 0:
        return f", so choosing is faster {interval}"
    if difference.low > 0:
        return f", so choosing is slower {interval}"
    return ", so neither is shown to be faster"


def _cost(best: Outcome) -> str:
    parts = f"{_seconds(best.pretraining_seconds)} of pre-training and "
    parts += f"{_seconds(best.selection_seconds)} of selection"
    times = best.choosing_seconds / max(best.training_seconds, 1e-9)
    share = f"{times:.1f} times" if times >= 2 else f"{times:.0%} of"
    often = "it is paid once, however often the subset is trained on"
    if best.every:
        often = "every training pays for selection again"
    return (
        f"Choosing with {best.strategy} cost {_seconds(best.choosing_seconds)} ({parts}), {share} "
        f"the {_seconds(best.training_seconds)} of main training; {often}."
    )


def _at(fraction: float) -> str:
    return f"At {100 * fraction:g}%"


def _points(difference: Difference, sign: str = "", more: str = "") -> str:
    mean, low, high = (
        f"{100 * value:{sign}.1f}" for value in (difference.mean, difference.low, difference.high)
    )
    return f"{mean} points (95% interval {low} to {high}, {difference.basis}{more})"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _and(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _do(names: Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"
