"""Plots of a report: scales and ticks, by which the page's template places values in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lipt.trainer.comparison.outcomes import Outcome
from lipt.trainer.views import IngredientView

WIDTH = 480
LEFT, RIGHT, TOP = 56, WIDTH - 12, 12
# More labels than this would run into each other.
_MOST_LABELS = 16
# Values closer together than this are drawn as one.
_FLAT = 1e-9


@dataclass(frozen=True)
class Scale:
    """Places of values on a line: `low` lies at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        share = (value - self.low) / max(self.high - self.low, _FLAT)
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True)
class Plot:
    """Axes of a plot, in pixels from its upper left corner, and the values marked on them."""

    height: int
    x: Scale
    y: Scale
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    width: int = WIDTH


def accuracy_against_cost(rows: Sequence[Outcome]) -> Plot:
    """The plot of a comparison's outcomes, at least one, with standard deviations as bars."""
    ys = [row.mean_accuracy + sign * row.std_accuracy for row in rows for sign in (-1, 1)]
    x_ticks = nice_ticks(0.0, max(row.total_seconds for row in rows))
    y_ticks = nice_ticks(min(ys), max(ys))
    x = Scale(x_ticks[0], x_ticks[-1], LEFT, RIGHT)
    return Plot(320, x, Scale(y_ticks[0], y_ticks[-1], 276, TOP), x_ticks, y_ticks)


def accuracy_over_time(rows: Sequence[Outcome]) -> Plot | None:
    """The plot of test accuracy in the course of training; None where nobody looked."""
    looks = [look for row in rows for look in row.course]
    if not looks:
        return None
    x_ticks = nice_ticks(0.0, max(look.seconds for look in looks))
    ys = [look.accuracy for look in looks]
    y_ticks = nice_ticks(min(ys), max(ys))
    x = Scale(x_ticks[0], x_ticks[-1], LEFT, RIGHT)
    return Plot(320, x, Scale(y_ticks[0], y_ticks[-1], 276, TOP), x_ticks, y_ticks)


def soup_by_learner(tried: Sequence[IngredientView]) -> Plot:
    """The plot of the soup's ingredients, at least one: each has the x from its place to the next.

    The ticks of x are the places whose learners are named.
    """
    highest = max(max(part.accuracy, part.soup_accuracy) for part in tried)
    x_ticks = range(0, len(tried), math.ceil(len(tried) / _MOST_LABELS))
    y_ticks = nice_ticks(0.0, highest)
    x = Scale(0, len(tried), LEFT, RIGHT)
    return Plot(240, x, Scale(0.0, y_ticks[-1], 200, TOP), x_ticks, y_ticks)


def interval_scale(rows: Sequence[Outcome]) -> Scale:
    """A line from 0 to 100 that holds zero and every interval around a difference to random."""
    found = [row.difference for row in rows if row.difference and row.difference.bounded]
    low = min([0.0, *(difference.low for difference in found)])
    return Scale(low, max([0.0, *(difference.high for difference in found)]), 0, 100)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers, the first at or below `low`, the last at or above `high`."""
    span = next(span for span in (high - low, abs(high), 1.0) if span > _FLAT)
    raw = span / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]
