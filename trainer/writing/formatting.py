"""Formatting for people: sizes with units, shares as percentages, tables of equal columns."""

from __future__ import annotations

from collections.abc import Sequence

from lipt.common.text.printable import printable


def format_bytes(count: int) -> str:
    """A size with its decimal unit: 1234567 is "1.2 MB"."""
    if count < 1000:
        return f"{count} B"
    size, unit = count / 1000, "kB"
    for larger in ("MB", "GB"):
        if size >= 1000:
            size, unit = size / 1000, larger
    return f"{size:.1f} {unit}"


def format_percent(share: float) -> str:
    """An accuracy: 0.4567 is "45.7%"."""
    return f"{100 * share:.1f}%"


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart; a cell cannot begin a row."""
    lines = [tuple(map(printable, row)) for row in (header, *rows)]
    widths = [max(len(row[column]) for row in lines) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    ]
