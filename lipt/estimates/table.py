"""Table: an estimate as one reads it, on a terminal or as lines of text."""

from __future__ import annotations

from rich.table import Table

from lipt.common.sizes import format_bytes
from lipt.estimates.estimate import Estimate
from lipt.trainer.cli.display.screen import Screen, styled
from lipt.trainer.writing.formatting import table_lines

_HEADER = ("stage", "process", "seconds", "moved", "on disk", "memory", "work")
_NOTHING = "-"
# Two ends that are as close are one number.
_SAME = 1.05
# What a stage takes besides its work is as much.
_LEAST = 0.1


def print_estimate(estimate: Estimate, console: Screen | None = None) -> None:
    """Draw the table as wide as the terminal, and say what it rests on."""
    screen = console or Screen()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in _HEADER[:2]:
        table.add_column(name, no_wrap=True)
    for name in _HEADER[2:6]:
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column(_HEADER[6], ratio=1)
    for row in _cells(estimate):
        table.add_row(*map(styled, row))
    screen.print(styled(estimate.subject, "bold"))
    screen.print(table)
    for line in _notes(estimate):
        screen.print(styled(line, "dim"))


def lines_of(estimate: Estimate) -> list[str]:
    """The same as text."""
    return [estimate.subject, "", *table_lines(_HEADER, _cells(estimate)), "", *_notes(estimate)]


def format_seconds(low: float | None, high: float | None) -> str:
    """Seconds, or a range of them; two digits are all that an estimate has."""
    if low is None or high is None:
        return _NOTHING
    if high <= low * _SAME:
        return _two_digits(high)
    first, last = _two_digits(low), _two_digits(high)
    return first if first == last else f"{first} to {last}"


def _two_digits(seconds: float) -> str:
    if seconds < _LEAST:
        return f"<{_LEAST}"
    rounded = float(f"{seconds:.2g}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:g}"


def _cells(estimate: Estimate) -> list[tuple[str, ...]]:
    rows = [
        (
            row.stage,
            row.process.value,
            format_seconds(row.seconds_low, row.seconds_high),
            _size(row.moved_bytes),
            _size(row.disk_bytes),
            _size(row.memory_bytes),
            row.work,
        )
        for row in estimate.rows
    ]
    whole = (
        "all",
        "",
        format_seconds(estimate.seconds_low, estimate.seconds_high),
        _size(estimate.moved_bytes),
        _size(estimate.disk_bytes),
        "",
        "",
    )
    return [*rows, whole]


def _notes(estimate: Estimate) -> list[str]:
    lines = [f"fitted to the data: {estimate.fitted}"] if estimate.fitted else []
    mapped = sum(row.mapped_bytes for row in estimate.rows)
    if mapped:
        lines.append(
            f"Besides, {format_bytes(mapped)} of signals are in a mapped file, and as much again "
            "while it is kept."
        )
    most = ", ".join(
        f"{process} {format_bytes(size)}" for process, size in estimate.memory_bytes.items()
    )
    lines.append(f"Memory at the most, by process: {most}.")
    if not estimate.measured:
        lines.append("Counted; nothing was measured, so no seconds are told.")
        return lines
    workers = ", ".join(
        f"{number} {format_seconds(seconds, seconds)} s"
        for number, seconds in estimate.learners_seconds.items()
    )
    lines += [
        f"Learners with so many workers, each on cores of its own: {workers}.",
        (
            "Images, bytes and memory are counted; seconds are those of pieces that were done here "
            "just now, times how many there are. The first would do if nothing else ran here, the "
            "second is at this machine's load. The network is not among them."
        ),
    ]
    if estimate.seconds_low is None:
        lines.append("Of what has no seconds, no piece can be measured before there are learners.")
    return lines


def _size(count: int) -> str:
    return format_bytes(count) if count else _NOTHING
