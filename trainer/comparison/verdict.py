"""Verdict of a comparison: its outcomes as tables, and as a sentence for each fraction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from lipt.common.text import format_bytes
from lipt.trainer.comparison.outcomes import Difference, Outcome
from lipt.trainer.comparison.trial import EVERYTHING, SOFT, UNTRAINED, label
from lipt.trainer.formatting import table_lines

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
    texts = {"loss (95% interval)": _loss_text(row.loss)}
    if row.exact_match is not None:
        texts["exact match"] = f"{row.exact_match:.1%}"
    return texts


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
    for table in ([cells(row) for row in rows], alternatives(rows)):
        if table:
            lines += ["", *table_lines(list(table[0]), [list(each.values()) for each in table])]
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
    verdicts = []
    not_subsets = (EVERYTHING, EVERYTHING + SOFT, UNTRAINED)
    subsets = (row for row in rows if row.strategy not in not_subsets)
    for fraction in sorted({row.fraction for row in subsets}):
        within = [row for row in rows if row.fraction == fraction]
        chosen = [row for row in within if row.is_chosen]
        if within[0].at_chance:
            verdicts.append(Verdict(fraction, _nothing_learned(within[0]), learned=False))
            continue
        if not chosen:
            verdicts.append(Verdict(fraction, f"{_at(fraction)} nothing was chosen."))
            continue
        # A strategy that beats random comes before one with a higher mean alone.
        best = max(chosen, key=lambda row: (row.beats_random, row.mean_accuracy))
        contrasts = tuple(_contrasts(best, chosen))
        rival = _rival(best, [*within, *(row for row in rows if row.strategy in not_subsets)])
        notes = tuple(filter(None, (rival, _cost(best), _rising(within), _repeated(chosen))))
        verdicts.append(
            Verdict(fraction, _sentence(best, chosen), best.beats_random, contrasts, notes)
        )
    return verdicts


def verdict(rows: Sequence[Outcome]) -> str:
    """A sentence for each fraction, a table of all differences, and notes."""
    verdicts = answers(rows)
    lines = [answer.sentence for answer in verdicts]
    if table := [row.cells() for answer in verdicts for row in answer.contrasts]:
        lines += table_lines(list(table[0]), [list(row.values()) for row in table])
    return "\n".join([*lines, *(note for answer in verdicts for note in answer.notes)])


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


def _nothing_learned(row: Outcome) -> str:
    scores = [f"{label(name)} reaches {score:.1%}" for name, score in row.at_chance.items()]
    return (
        f"{_at(row.fraction)} this recipe does not learn here: {_and(scores)}, chance is "
        f"{row.chance:.1%}. There is no verdict. Train for more steps, lower learning_rate, or set "
        "augmentation=none."
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
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
