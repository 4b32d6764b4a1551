"""What commands print: JSON for scripts, tables for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import typer

from lipt.trainer.views import to_jsonable


def print_json(value: Any) -> None:
    """One JSON document on one line, keys in the order of the value's fields."""
    typer.echo(json.dumps(to_jsonable(value), ensure_ascii=False, allow_nan=False))


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output."""
    for line in table_lines(header, rows):
        typer.echo(line)


def format_bytes(count: int) -> str:
    """A size with its decimal unit: 1234567 is "1.2 MB"."""
    if count < 1000:
        return f"{count} B"
    size, unit = count / 1000, "kB"
    for larger in ("MB", "GB"):
        if size >= 1000:
            size, unit = size / 1000, larger
    return f"{size:.1f} {unit}"


def counting_bytes(report: Callable[[str], None], activity: str) -> Callable[[int], None]:
    """A function that is told of bytes as they move, and reports their sum."""
    total = 0

    def on_bytes(count: int) -> None:
        nonlocal total
        total += count
        report(f"{activity}: {format_bytes(total)}")

    return on_bytes


def format_percent(share: float) -> str:
    """An accuracy: 0.4567 is "45.7%"."""
    return f"{100 * share:.1f}%"
