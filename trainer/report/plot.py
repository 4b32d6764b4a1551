"""Plots as values that a template draws in SVG: scales, ticks, and points in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lipt.trainer.comparison.verdict import Difference, Outcome

WIDTH, HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 44
# Values closer together than this are drawn as one.
_FLAT = 1e-9


@dataclass(frozen=True)
class Tick:
    """A line of the grid."""

    place: float
    label: str


@dataclass(frozen=True)
class Point:
    """One strategy at one fraction, with its standard deviation as a bar."""

    x: float
    y: float
    low: float
    high: float
    label: str


@dataclass(frozen=True)
class Series:
    """The points of one strategy, by rising cost."""

    name: str
    random: bool
    points: tuple[Point, ...]

    @property
    def path(self) -> str:
        """The line through the points."""
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


@dataclass(frozen=True)
class Plot:
    """Accuracy against total cost."""

    width: int
    height: int
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


def accuracy_against_cost(rows: Sequence[Outcome]) -> Plot:
    """The plot of a comparison's outcomes, at least one."""
    xs = [row.total_seconds for row in rows]
    ys = [row.mean_accuracy + sign * row.std_accuracy for row in rows for sign in (-1, 1)]
    x_ticks, y_ticks = nice_ticks(0.0, max(xs)), nice_ticks(min(ys), max(ys))

    def x(seconds: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * _share(seconds, x_ticks)

    def y(accuracy: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * _share(accuracy, y_ticks)

    def point(row: Outcome) -> Point:
        mean, std = row.mean_accuracy, row.std_accuracy
        label = f"{row.strategy}, {row.fraction:.0%}: {mean:.1%} in {row.total_seconds:.0f} s"
        return Point(x(row.total_seconds), y(mean), y(mean - std), y(mean + std), label)

    names = dict.fromkeys(row.strategy for row in rows)
    return Plot(
        width=WIDTH,
        height=HEIGHT,
        x_ticks=tuple(Tick(x(value), f"{value:g} s") for value in x_ticks),
        y_ticks=tuple(Tick(y(value), f"{100 * value:.4g}%") for value in y_ticks),
        series=tuple(
            Series(
                name,
                random=all(row.difference is None for row in rows if row.strategy == name),
                points=tuple(point(row) for row in rows if row.strategy == name),
            )
            for name in names
        ),
    )


@dataclass(frozen=True)
class Strip:
    """A difference to random on a line with zero on it; places from 0 to 100."""

    zero: float
    low: float
    mean: float
    high: float


def interval_strips(rows: Sequence[Outcome]) -> list[Strip | None]:
    """A strip per row on one scale; None for random itself, and where one seed has no interval."""
    finite = [
        row.difference if row.difference is not None and math.isfinite(row.difference.low) else None
        for row in rows
    ]
    found = [difference for difference in finite if difference is not None]
    low = min([0.0, *(difference.low for difference in found)])
    high = max([0.0, *(difference.high for difference in found)])
    span = max(high - low, _FLAT)

    def place(value: float) -> float:
        return 100 * (value - low) / span

    def strip(difference: Difference) -> Strip:
        return Strip(
            zero=place(0.0),
            low=place(difference.low),
            mean=place(difference.mean),
            high=place(difference.high),
        )

    return [None if difference is None else strip(difference) for difference in finite]


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers, the first at or below `low`, the last at or above `high`."""
    span = next(span for span in (high - low, abs(high), 1.0) if span > _FLAT)
    raw = span / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


def _share(value: float, ticks: Sequence[float]) -> float:
    return (value - ticks[0]) / (ticks[-1] - ticks[0])
