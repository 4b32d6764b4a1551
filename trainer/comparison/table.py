"""Tables and verdict of a comparison, for a terminal, a notebook and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lipt.common.text import format_bytes
from lipt.trainer.comparison.baselines import EVERYTHING, REDRAWN, label
from lipt.trainer.writing.formatting import format_percent, table_lines

if TYPE_CHECKING:  # both import torch
    from lipt.trainer.comparison.outcomes import Difference, Outcome, Reach, Reached

HEADER = (
    "fraction",
    "strategy",
    "accuracy",
    "to random (95% interval)",
    "seeds",
    "on the subset",
    "levelled off",
    "steps",
    "total time",
    "sent",
)

INSTEAD_HEADER = (
    "fraction",
    "strategy",
    "to everything (95% interval)",
    "to re-drawn random (95% interval)",
    "target",
    "reached in",
    "steps till then",
    "time till then",
    "choosing",
)


def header(rows: Sequence[Outcome]) -> tuple[str, ...]:
    """`HEADER` with the name of the score in place of accuracy."""
    score = rows[0].score_name if rows else "accuracy"
    return tuple(score if name == "accuracy" else name for name in HEADER)


def cells(row: Outcome) -> tuple[str, ...]:
    """One outcome under `HEADER`."""
    return (
        _fraction(row.fraction),
        row.label,
        f"{format_percent(row.mean_accuracy)} +- {100 * row.std_accuracy:.1f}",
        _difference(row.difference) + (" to without" if row.is_soft and row.difference else ""),
        str(row.num_seeds),
        "-" if row.subset_accuracy is None else format_percent(row.subset_accuracy),
        {True: "yes", False: "no", None: "-"}[row.levelled_off],
        str(row.num_steps),
        _time(row.total_seconds),
        format_bytes(round(row.bytes_sent)) if row.bytes_sent else "-",
    )


def instead(rows: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """The rows under `INSTEAD_HEADER`; empty where nothing of it was measured."""
    everything = next((row for row in rows if row.strategy == EVERYTHING), None)
    found: list[tuple[str, ...]] = []
    for fraction in dict.fromkeys(row.fraction for row in rows if row.strategy != EVERYTHING):
        within = [row for row in rows if row.fraction == fraction and row.strategy != EVERYTHING]
        found += [
            (
                _fraction(fraction),
                row.label,
                _difference(row.to_everything),
                _difference(row.to_redrawn),
                *_reached(row.reach, row.reach.own if row.reach else None, row.choosing_seconds),
            )
            for row in within
            if row.to_everything or row.to_redrawn or row.reach
        ]
        reach = next((row.reach for row in within if row.reach and row.reach.everything), None)
        if reach and everything:
            reached = _reached(reach, reach.everything, 0.0)
            found.append((_fraction(everything.fraction), everything.label, "-", "-", *reached))
    return found


def plain(rows: Sequence[Outcome]) -> list[str]:
    """The lines of both tables on a terminal."""
    lines = table_lines(header(rows), [cells(row) for row in rows])
    more = instead(rows)
    return [*lines, "", *table_lines(INSTEAD_HEADER, more)] if more else lines


def _fraction(fraction: float) -> str:
    return format_percent(fraction).replace(".0%", "%")


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    mean, low, high = (
        f"{100 * value:+.1f}" for value in (difference.mean, difference.low, difference.high)
    )
    return f"{mean} ({low} to {high})" if difference.bounded else mean


def _reached(
    reach: Reach | None, reached: Reached | None, choosing_seconds: float
) -> tuple[str, ...]:
    if reach is None or reached is None:
        return ("-",) * 5
    return (
        format_percent(reach.target),
        f"{reached.num_reached} of {reached.num_trainings}",
        "-" if reached.steps is None else f"{reached.steps:.0f}",
        "-" if reached.seconds is None else _time(reached.seconds),
        _time(choosing_seconds),
    )


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"


@dataclass(frozen=True)
class Answers:
    """The verdict on one fraction; a text is empty where nothing was measured for it."""

    fraction: float
    better: str
    beats_random: bool = False
    faster: str = ""
    cost: str = ""


def answers(rows: Sequence[Outcome]) -> list[Answers]:
    """What the outcomes say, for each fraction."""
    found = []
    for fraction in sorted({row.fraction for row in rows if row.strategy != EVERYTHING}):
        within = [row for row in rows if row.fraction == fraction]
        chosen = [row for row in within if row.is_judged]
        if not chosen:
            found.append(Answers(fraction, f"{_at(fraction)} nothing was chosen."))
            continue
        # One that beats random before one that may only have been lucky.
        best = max(chosen, key=lambda row: (row.beats_random, row.mean_accuracy))
        better = _better(best, chosen) + _rising(within)
        cost = _cost(best)
        found.append(Answers(fraction, better, best.beats_random, _faster(best), cost))
    return found


def verdict(rows: Sequence[Outcome]) -> str:
    """All answers, a line for each."""
    texts = (text for found in answers(rows) for text in (found.better, found.faster, found.cost))
    return "\n".join(filter(None, texts))


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


def _faster(best: Outcome) -> str:
    rivals = (EVERYTHING, best.to_everything), (label(REDRAWN), best.to_redrawn)
    standing = [_standing(difference, rival) for rival, difference in rivals if difference]
    if not standing:
        return ""
    text = f"Trained for as many steps, {best.label} is {_and(standing)}."
    return text if best.reach is None else text + _sooner(best.reach)


def _standing(difference: Difference, rival: str) -> str:
    if not difference.bounded:
        return f"{100 * difference.mean:+.1f} points from {rival} (one seed tells nothing)"
    if difference.low > 0:
        return f"better than {rival} by {_points(difference)}"
    if difference.high < 0:
        return f"worse than {rival} by {_points(difference, negated=True)}"
    return f"not told apart from {rival}, at {_points(difference, '+')}"


def _sooner(reach: Reach) -> str:
    target = format_percent(reach.target)
    text = f" To {target}, what random ends with, it takes {_when(reach.own)}, choosing included"
    for rival, theirs, difference in (
        (EVERYTHING, reach.everything, reach.to_everything),
        (label(REDRAWN), reach.redrawn, reach.to_redrawn),
    ):
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
    if difference.low <= 0 <= difference.high:
        return ", so neither is shown to be faster"
    low, high = sorted((abs(difference.low), abs(difference.high)))
    return (
        f", so choosing is {'faster' if difference.high < 0 else 'slower'} by "
        f"{_seconds(abs(difference.mean))} (95% interval {_seconds(low)} to {_seconds(high)}, "
        f"{difference.num_seeds} seeds)"
    )


def _cost(best: Outcome) -> str:
    times = best.choosing_seconds / max(best.training_seconds, 1e-9)
    share = f"{times:.1f} times" if times >= 2 else f"{times:.0%} of"
    return (
        f"Choosing with {best.strategy} cost {_seconds(best.choosing_seconds)} "
        f"({_seconds(best.pretraining_seconds)} of pre-training and "
        f"{_seconds(best.selection_seconds)} of selection), {share} the "
        f"{_seconds(best.training_seconds)} of main training; it is paid once, however "
        "often the subset is trained on."
    )


def _at(fraction: float) -> str:
    return f"At {100 * fraction:g}%"


def _points(difference: Difference, sign: str = "", *, negated: bool = False) -> str:
    values = difference.mean, difference.low, difference.high
    if negated:
        values = -difference.mean, -difference.high, -difference.low
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in values)
    return f"{mean} points (95% interval {low} to {high}, {difference.num_seeds} seeds)"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _and(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _do(names: Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"
