"""Formatting: tables, differences, notebook HTML, and JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from lipt.common.text import escaped, printable
from lipt.data.sources.cells import number_in


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format columns as wide as their widest cell, two spaces apart; cells have no line breaks."""
    lines = [tuple(map(printable, row)) for row in (header, *rows)]
    widths = [max(len(row[column]) for row in lines) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    ]


# Spreadsheets run a cell that begins with one of these, full-width ones too.
_FORMULA = "=+-@\uff1d\uff0b\uff0d\uff20"
# Line ends in quotes, and parts of words in Japanese, French, Persian and Hindi.
_KEPT = "\n\u3000\xa0\u202f\u200c\u200d"


def csv_cell(text: str) -> str:
    """A text as a cell for spreadsheets: no formula, and escapes for control characters."""
    shown = escaped(text, keep=_KEPT)
    is_formula = shown.lstrip()[:1] in tuple(_FORMULA) and number_in(shown) is None
    return f"'{shown}" if is_formula else shown


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """List settings whose JSON values differ, nested too: "its recipe.steps is 3, now it is 4"."""
    return "; ".join(_each(before, after, within=""))


def _each(before: Mapping[str, Any], after: Mapping[str, Any], within: str) -> Iterator[str]:
    for name in dict.fromkeys((*after, *before)):
        then, now, label = before.get(name), after.get(name), f"{within}{name}"
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            yield from _each(then, now, within=f"{label}.")
        elif then != now:
            yield f"its {label} is {then!r}, now it is {now!r}"


def to_jsonable(value: Any) -> Any:
    """Convert views to JSON values: times become ISO 8601, infinities and NaN null."""
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - slow

    return to_jsonable_python(value, inf_nan_mode="null")


def as_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table><caption>{escape(caption)}</caption>{cells}</table>"


def share_bar(share: float, interval: tuple[float, float]) -> str:
    """A share as a bar from 0 to 1, its interval as a whisker: an SVG of the container's width."""
    low, high = (f"{100 * bound:.2f}" for bound in interval)
    return (
        '<svg class="share" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true" '
        'width="100%" height="14" overflow="visible">'
        f'<rect width="{100 * share:.2f}" height="12" fill="#4477aa" fill-opacity=".55"/>'
        f'<path d="M{low} 6H{high}M{low} 2v8M{high} 2v8" fill="none" stroke="currentColor" '
        'stroke-width="1.5" vector-effect="non-scaling-stroke"/></svg>'
    )
