"""What commands print: JSON for scripts, tables for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import typer

from lipt.trainer.writing.formatting import format_bytes, table_lines
from lipt.trainer.writing.jsonable import to_jsonable


def print_json(value: Any) -> None:
    """One JSON document on one line, keys in the order of the value's fields."""
    typer.echo(json.dumps(to_jsonable(value), ensure_ascii=False, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output."""
    for line in table_lines(header, rows):
        typer.echo(line)


def counting_bytes(report: Callable[[str], None], activity: str) -> Callable[[int], None]:
    """A function that is told of bytes as they move, and reports their sum."""
    total = 0

    def on_bytes(count: int) -> None:
        nonlocal total
        total += count
        report(f"{activity}: {format_bytes(total)}")

    return on_bytes
