"""Tables: columns that are dropped where a terminal is narrow, and lines cut to its width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table

from lipt.common.text import printable
from lipt.trainer.cli.display.screen import styled

# Columns that go first where a terminal is narrow are shown from these widths on.
SMALL, NARROW, WIDE = 60, 80, 110


@dataclass(frozen=True)
class Column:
    """A column: its head, what stands in it, and from which width on it is shown."""

    head: str
    cell: Callable[..., str]
    from_width: int = 0
    right: bool = False


def table_of(
    columns: Sequence[Column], rows: Sequence[object], styles: Sequence[str], width: int
) -> Table:
    """A row for each of `rows`, in its style, of those columns that there is room for."""
    shown = [column for column in columns if width >= column.from_width]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in shown:
        table.add_column(
            column.head, justify="right" if column.right else "left", no_wrap=True, overflow="fold"
        )
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*(styled(column.cell(row)) for column in shown), style=style)
    return table


def more(number: int, what: str) -> list[RenderableType]:
    """A line about what there was no room for."""
    return [styled(f"and {count(number, 'more ' + what)}", "dim")] if number > 0 else []


def count(number: int, what: str) -> str:
    """A number of things."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def cut(line: str, width: int) -> str:
    """One line of the screen."""
    line = printable(line)
    return line if len(line) <= width else f"{line[: width - 1]}…"
