"""Drawing of the pages: templates, and the scales and points by which they place values in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.imports import import_extra
from lipt.common.maps import placed, principal_components
from lipt.common.text import escaped, format_bytes
from lipt.trainer.writing.formatting import format_percent

WIDTH, HEIGHT = 480, 400
_LEFT, _RIGHT, _TOP, _BELOW = 56, WIDTH - 12, 12, 44
_MAP_MARGIN = 14
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
    """Axes of a plot, in pixels from its upper left corner, and the values marked on y."""

    height: int
    x: Scale
    y: Scale
    y_ticks: Sequence[float]
    width: int = WIDTH


def plot(height: int, num_places: float, ys: Sequence[float]) -> Plot:
    """A plot whose x runs from 0 to `num_places`, and whose y spans some values."""
    y_ticks = nice_ticks(min(ys), max(ys))
    y = Scale(y_ticks[0], y_ticks[-1], height - _BELOW, _TOP)
    return Plot(height, Scale(0, num_places, _LEFT, _RIGHT), y, y_ticks)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers, the first at or below `low`, the last at or above `high`."""
    span = next(span for span in (high - low, abs(high), 1.0) if span > _FLAT)
    raw = span / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


@dataclass(frozen=True)
class Point:
    """An example on the map; x and y in pixels from its upper left corner."""

    row: int
    label: int
    x: float
    y: float


def draw(ids_M: Tensor, labels_N: NDArray[np.int64], features_MD: Tensor) -> list[Point]:
    """The map of M of N examples, by the first two principal components of their features."""
    places_M2 = principal_components(features_MD)
    pixels_M2 = placed(places_M2, width=WIDTH, height=HEIGHT, margin=_MAP_MARGIN)
    return [
        Point(row, int(labels_N[row]), x, y)
        for row, (x, y) in zip(ids_M.tolist(), pixels_M2.tolist(), strict=True)
    ]


def open_templates(needed_for: str) -> Any:
    """jinja2's environment with the templates of this package.

    Args:
        needed_for: the command that makes the page, for the message where jinja2 is missing.
    """
    jinja2 = import_extra("jinja2", package="jinja2", extra="report", needed_for=needed_for)
    environment = jinja2.Environment(
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_source),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = format_percent
    environment.filters["size"] = format_bytes
    environment.filters["thousands"] = "{:,}".format
    return environment


def _finalize(value: Any) -> Any:
    return escaped(value, keep="\n\t") if type(value) is str else value


def _source(name: str) -> str:
    return resources.files("lipt.trainer.report").joinpath(name).read_text("utf-8")
