"""Formatting for people: shares as percentages, tables of equal columns."""

from __future__ import annotations

from collections.abc import Sequence

from lipt.common.text import printable


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
