"""Tables of a comparison: its outcomes as cells, for a terminal, Markdown or HTML.

The first table has accuracies at equal steps; the second has what people would do instead, and
how soon a target is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lipt.common.text import format_bytes
from lipt.trainer.comparison.baselines import EVERYTHING
from lipt.trainer.writing.formatting import format_percent, table_lines

if TYPE_CHECKING:  # which would import torch, before the demo has said a word
    from lipt.trainer.comparison.intervals import Difference
    from lipt.trainer.comparison.outcomes import Outcome, Reached

Table = tuple[Sequence[str], list[tuple[str, ...]]]

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
    """`HEADER` with the name of what was scored."""
    score = rows[0].score_name if rows else "accuracy"
    return tuple(score if name == "accuracy" else name for name in HEADER)


def cells(row: Outcome) -> tuple[str, ...]:
    """One outcome under `HEADER`."""
    return (
        _fraction(row.fraction),
        row.label,
        f"{format_percent(row.mean_accuracy)} +- {100 * row.std_accuracy:.1f}",
        _difference(row.difference),
        _seeds(row),
        "-" if row.subset_accuracy is None else format_percent(row.subset_accuracy),
        {True: "yes", False: "no", None: "-"}[row.levelled_off],
        str(row.num_steps),
        _time(row.total_seconds),
        format_bytes(round(row.bytes_sent)) if row.bytes_sent else "-",
    )


def instead(rows: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """The rows under `INSTEAD_HEADER`; none where nothing of it was measured."""
    found: list[tuple[str, ...]] = []
    for fraction in dict.fromkeys(row.fraction for row in rows if row.strategy != EVERYTHING):
        within = [row for row in rows if row.fraction == fraction and row.strategy != EVERYTHING]
        for row in within:
            if row.to_everything or row.to_redrawn or row.reach:
                own = None if row.reach is None else row.reach.own
                found.append(
                    (
                        _fraction(fraction),
                        row.label,
                        _difference(row.to_everything),
                        _difference(row.to_redrawn),
                        format_percent(row.reach.target) if row.reach else "-",
                        *_reached(own, row.choosing_seconds),
                    )
                )
        reach = next((row.reach for row in within if row.reach and row.reach.everything), None)
        everything = [row for row in rows if row.strategy == EVERYTHING]
        if reach and everything:
            # Of the whole data set, towards this fraction's target.
            found.append(
                (
                    _fraction(everything[0].fraction),
                    everything[0].label,
                    "-",
                    "-",
                    format_percent(reach.target),
                    *_reached(reach.everything, 0.0),
                )
            )
    return found


def notes(rows: Sequence[Outcome]) -> list[str]:
    """What has to be known to read the tables, as sentences."""
    found = [row.difference for row in rows if row.difference and row.difference.bounded]
    text = []
    if any(difference.unit == "trainings" for difference in found):
        text.append(
            "Intervals are over the trainings of one pipeline seed: they tell of these subsets, "
            "not of those that another seed would choose."
        )
    elif any(row.num_trainings > row.num_seeds for row in rows):
        text.append(
            "Intervals are over the seeds of the whole pipeline, each with its trainings averaged."
        )
    elif found:
        text.append("Intervals are over the seeds of the whole pipeline.")
    if any(difference.num_needed for difference in found):
        text.append(
            'Where one is too wide to decide, "of about" says how many would tell a difference '
            "of one point."
        )
    return text


def plain(rows: Sequence[Outcome]) -> list[str]:
    """The lines of the tables on a terminal."""
    return _laid_out(rows, table_lines)


def markdown(rows: Sequence[Outcome]) -> list[str]:
    """The lines of the tables in Markdown."""
    return _laid_out(rows, _markdown)


def _laid_out(
    rows: Sequence[Outcome],
    lay_out: Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]],
) -> list[str]:
    lines = lay_out(header(rows), [cells(row) for row in rows])
    more = instead(rows)
    if more:
        lines += ["", *lay_out(INSTEAD_HEADER, more)]
    said = notes(rows)
    return [*lines, "", " ".join(said)] if said else lines


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ("---",) * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _fraction(fraction: float) -> str:
    return format_percent(fraction).replace(".0%", "%")


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    mean, low, high = (
        f"{100 * value:+.1f}" for value in (difference.mean, difference.low, difference.high)
    )
    return f"{mean} ({low} to {high})" if difference.bounded else mean


def _seeds(row: Outcome) -> str:
    each = row.num_trainings / row.num_seeds
    text = f"{row.num_seeds}" if each == 1 else f"{row.num_seeds} x {each:g}"
    needed = row.difference.num_needed if row.difference else None
    return text if needed is None else f"{text} of about {needed}"


def _reached(reached: Reached | None, choosing_seconds: float) -> tuple[str, str, str, str]:
    if reached is None:
        return "-", "-", "-", "-"
    count = f"{reached.num_reached} of {reached.num_trainings}"
    if reached.steps is None or reached.seconds is None:
        return count, "-", "-", _time(choosing_seconds)
    return count, f"{reached.steps:.0f}", _time(reached.seconds), _time(choosing_seconds)


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"
