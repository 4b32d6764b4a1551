"""The tables, in Markdown, as they stand in the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.selection.groups import Group
from benchmarks.selection.implementation import Implementation
from benchmarks.selection.runner import Cost


@dataclass(frozen=True)
class Row:
    """One implementation at one size, with what its choice is worth.

    problem: why there is nothing else; empty where there is.
    """

    size: int
    implementation: str
    cost: Cost | None = None
    num_chosen: int = 0
    objective: float | None = None
    problem: str = ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Padded, so that it reads well as plain text; all columns but the first are numbers."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(padded)} |"

    first, *others = widths
    ruler = f"|-{'-' * first}-|" + "".join(f"-{'-' * (width - 1)}-:|" for width in others)
    return "\n".join([line(header), ruler, *(line(row) for row in rows)])


def group_table(group: Group, rows: Sequence[Row]) -> str:
    """One table: a line per size and implementation, with ratios to our row."""
    implementations = {
        implementation.name: implementation for implementation in group.implementations
    }
    known = {(row.size, row.implementation): row for row in rows}
    header = ("implementation", "N", "CPU s", "/ ours", "extra MB", "/ ours", "objective", "chosen")
    lines = [_line(row, implementations.get(row.implementation), known) for row in rows]
    return f"{group.title}. Objective: {group.objective}.\n\n{table(header, lines)}"


def cost_table(rows: Sequence[Row], memory: str) -> str:
    """Of ours alone: what a selection costs."""
    header = ("strategy", "N", "seconds", "CPU s", f"extra {memory} MB", f"peak {memory} MB")
    lines = []
    for row in rows:
        if row.cost is None:
            lines.append((row.implementation, f"{row.size:,}", row.problem, "", "", ""))
            continue
        cost = row.cost
        lines.append(
            (
                row.implementation,
                f"{row.size:,}",
                number(cost.wall_seconds),
                number(cost.cpu_seconds),
                f"{cost.extra_mb:,.0f}",
                f"{cost.peak_mb:,.0f}",
            )
        )
    return table(header, lines)


def number(value: float) -> str:
    """Three digits that count, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.01 else f"{value:.3f}"


def _line(
    row: Row, implementation: Implementation | None, known: Mapping[tuple[int, str], Row]
) -> tuple[str, ...]:
    size = f"{row.size:,}"
    objective = "" if row.objective is None else f"{row.objective:,.5g}"
    if row.objective is not None and row.objective >= 1e4:
        objective = f"{row.objective:,.0f}"
    if row.cost is None:
        chosen = f"{row.num_chosen:,}" if row.num_chosen else ""
        return (row.implementation, size, row.problem, "", "", "", objective, chosen)
    base = known.get((row.size, implementation.against)) if implementation is not None else None
    time_ratio = memory_ratio = ""
    if base is not None and base.cost is not None:
        time_ratio = f"{number(row.cost.cpu_seconds / base.cost.cpu_seconds)}x"
        if base.cost.extra_mb >= 1:
            memory_ratio = f"{number(row.cost.extra_mb / base.cost.extra_mb)}x"
    seconds, extra = number(row.cost.cpu_seconds), f"{row.cost.extra_mb:,.0f}"
    return (
        row.implementation,
        size,
        seconds,
        time_ratio,
        extra,
        memory_ratio,
        objective,
        f"{row.num_chosen:,}",
    )
