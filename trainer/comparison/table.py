"""Table of a comparison: its outcomes as cells, for a terminal, Markdown or HTML."""

from __future__ import annotations

from collections.abc import Sequence

from lipt.trainer.comparison.verdict import Outcome
from lipt.trainer.writing.formatting import format_bytes, format_percent, table_lines

HEADER = (
    "fraction",
    "strategy",
    "accuracy",
    "to random (95% interval)",
    "on the subset",
    "levelled off",
    "steps",
    "total time",
    "sent",
)


def cells(row: Outcome) -> tuple[str, ...]:
    """One outcome under `HEADER`."""
    return (
        format_percent(row.fraction).replace(".0%", "%"),
        row.strategy,
        f"{format_percent(row.mean_accuracy)} +- {100 * row.std_accuracy:.1f}",
        _difference(row),
        format_percent(row.subset_accuracy),
        "yes" if row.levelled_off else "no",
        str(row.num_steps),
        f"{row.total_seconds:.0f} s",
        format_bytes(round(row.bytes_sent)) if row.bytes_sent else "-",
    )


def plain(rows: Sequence[Outcome]) -> list[str]:
    """The lines of a table on a terminal."""
    return table_lines(HEADER, [cells(row) for row in rows])


def markdown(rows: Sequence[Outcome]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [HEADER, ("---",) * len(HEADER), *(cells(row) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _difference(row: Outcome) -> str:
    if row.difference is None:
        return "-"
    mean, low, high = (
        f"{100 * value:+.1f}"
        for value in (row.difference.mean, row.difference.low, row.difference.high)
    )
    return f"{mean} ({low} to {high})" if row.difference.bounded else mean
