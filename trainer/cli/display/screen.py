"""Screen: rich's console for texts that are data, and never rich's markup or the terminal's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lipt.common.text import printable


class Screen(Console):
    """A console on which a worker called "[red]" is a name, and no name steers the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """What is printed, or stands in a table, as a plain string."""
        return super().render_str(printable(text), **options)


def styled(text: str, style: str = "") -> Text:
    """One line of text in a style."""
    return Text(printable(text), style=style)


def table_of(header: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> Table:
    """A table of rows that are each a style and its cells."""
    table = Table(*header, box=None, pad_edge=False, header_style="bold")
    for style, cells in rows:
        table.add_row(*map(styled, cells), style=style)
    return table
