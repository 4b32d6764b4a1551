"""Tables of the bench: what each stage took, and how many times as long the warm-ups take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.table import Table

from benchmarks.pretraining_price.measurements import LIPT, SCALES, Cell, Price, Row
from lipt.common.text import format_bytes

BEGIN, END = "<!-- pretraining price: begin -->", "<!-- pretraining price: end -->"
_STAGES = ("initialization", "sharding", "training", "merging", "waiting", "signals and selection")
_HEADER = (
    "pre-training",
    "process start",
    *_STAGES,
    "to weights",
    "to a subset",
    "CPU s",
    "sent",
    "load",
)


@dataclass(frozen=True)
class Ratio:
    """How many times as much a warm-up takes as LiPT with some workers."""

    warm_up: str
    num_workers: int
    to_weights: float
    to_subset: float
    cpu: float


def lines_of(rows: Mapping[Cell, Row], scale: str) -> list[tuple[str, ...]]:
    """A line of text for each kind of cell, medians over its rounds."""
    lines = []
    for kind, group in _groups(rows, scale).items():
        prices = [row.price for row in group.values()]
        stages = [_stage(prices, name) for name in _STAGES]
        sent = median(price.bytes_moved for price in prices)
        loads = [load for row in group.values() for load in row.load_averages]
        line = (
            _words(*kind),
            _seconds(prices, lambda price: price.start_seconds),
            *stages,
            _seconds(prices, lambda price: price.pretrained_seconds),
            _seconds(prices, lambda price: price.subset_seconds),
            _seconds(prices, lambda price: price.cpu_seconds),
            format_bytes(int(sent)) if sent else "-",
            f"{min(loads):.1f} to {max(loads):.1f}",
        )
        lines.append(line)
    return lines


def ratios(rows: Mapping[Cell, Row], scale: str) -> list[Ratio]:
    """Of each warm-up to LiPT with each number of workers; medians over rounds with both."""
    groups, found = _groups(rows, scale), []
    for warm_up in SCALES[scale].warm_ups:
        for num_workers in SCALES[scale].num_workers:
            theirs = groups.get((warm_up, 0), {})
            ours = groups.get((LIPT, num_workers), {})
            both = sorted(theirs.keys() & ours.keys())
            if both:
                pairs = [(theirs[number].price, ours[number].price) for number in both]
                found.append(
                    Ratio(
                        warm_up,
                        num_workers,
                        median(a.pretrained_seconds / b.pretrained_seconds for a, b in pairs),
                        median(a.subset_seconds / b.subset_seconds for a, b in pairs),
                        median(a.cpu_seconds / b.cpu_seconds for a, b in pairs),
                    )
                )
    return found


def printed(rows: Mapping[Cell, Row], scale: str) -> list[Table]:
    """Both tables for a terminal."""
    header, *lines = _turned(rows, scale)
    seconds = Table(*header, title="seconds from run start, medians")
    for line in lines:
        seconds.add_row(*line)
    times = Table("warm-up", "LiPT with", "to weights", "to a subset", "CPU", title="times as long")
    for ratio in ratios(rows, scale):
        times.add_row(*_cells(ratio))
    return [seconds, times]


def markdown(rows: Mapping[Cell, Row], scale: str) -> str:
    """Both tables for the documentation, and where and when they were measured."""
    mine = [row for cell, row in rows.items() if cell.scale == scale]
    machines = ", ".join(sorted({row.machine for row in mine}))
    days = sorted({row.measured_at[:10] for row in mine})
    versions = sorted({row.versions.get("torch", "") for row in mine})
    rounds = 1 + max(cell.round for cell in rows if cell.scale == scale)
    where = (
        f"Measured on {machines}, torch {', '.join(versions)}, "
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}; seconds from run start, "
        f"{'one round' if rounds == 1 else f'medians of {rounds} rounds'}:"
    )
    times = [("warm-up", "LiPT with", "to weights", "to a subset", "CPU")]
    times += [_cells(ratio) for ratio in ratios(rows, scale)]
    seconds = _table(_turned(rows, scale))
    return f"{where}\n\n{seconds}\n\nTimes as long as LiPT:\n\n{_table(times)}"


def write_section(page: Path, section: str) -> None:
    """Put a section between the page's marks.

    Raises:
        ValueError: the page lacks them.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no {BEGIN} and {END}, between which the tables belong.")
    page.write_text(f"{before}{BEGIN}\n\n{section}\n\n{END}{after}", encoding="utf-8")


def _turned(rows: Mapping[Cell, Row], scale: str) -> list[tuple[str, ...]]:
    """A column for each kind of cell, which fits a terminal and a page."""
    return list(zip(_HEADER, *lines_of(rows, scale), strict=True))


def _groups(rows: Mapping[Cell, Row], scale: str) -> dict[tuple[str, int], dict[int, Row]]:
    """Rows by kind of cell, in the order in which they are measured, then by round."""
    sizes = SCALES[scale]
    kinds = [(LIPT, number) for number in sizes.num_workers]
    kinds += [(warm_up, 0) for warm_up in sizes.warm_ups]
    groups: dict[tuple[str, int], dict[int, Row]] = {kind: {} for kind in kinds}
    for cell, row in rows.items():
        if cell.scale == scale:
            groups[cell.pretraining, cell.num_workers][cell.round] = row
    return {kind: group for kind, group in groups.items() if group}


def _words(pretraining: str, num_workers: int) -> str:
    return f"LiPT, {_workers(num_workers)}" if pretraining == LIPT else f"`{pretraining}`"


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def _stage(prices: list[Price], name: str) -> str:
    if not any(name in price.stages for price in prices):
        return "-"
    return _seconds(prices, lambda price: price.stages.get(name, 0.0))


def _seconds(prices: list[Price], of: Callable[[Price], float]) -> str:
    value = median(map(of, prices))
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _cells(ratio: Ratio) -> tuple[str, ...]:
    figures = (ratio.to_weights, ratio.to_subset, ratio.cpu)
    return (
        f"`{ratio.warm_up}`",
        _workers(ratio.num_workers),
        *(f"{one:.1f}" for one in figures),
    )


def _table(lines: list[tuple[str, ...]]) -> str:
    header, *rest = lines
    rule = ("---", *("---:" for _ in header[1:]))
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rest))
