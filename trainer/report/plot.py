"""Drawing of the pages: templates, and the scales and points by which they place values in SVG.

Shapes: N examples of the data, M that are drawn, D features.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.determinism import derive_seed
from lipt.common.imports import import_extra
from lipt.common.text import escaped, format_bytes
from lipt.trainer.comparison.outcomes import Outcome
from lipt.trainer.views import IngredientView
from lipt.trainer.writing.formatting import format_percent

WIDTH, HEIGHT = 480, 400
LEFT, RIGHT, TOP = 56, WIDTH - 12, 12
# More labels than this would run into each other.
_MOST_LABELS = 16
# Values closer together than this are drawn as one.
_FLAT = 1e-9
_MOST_AT_RANDOM = 1000
# Of all subsets together, beyond those that are drawn at random.
_MOST_CHOSEN = 500
# On data that is only hard, a sixth of all labels may be suspected.
MOST_SUSPECTS = 100


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


_MARGIN = 14


@dataclass(frozen=True)
class Point:
    """An example on the map; x and y in pixels from its upper left corner."""

    row: int
    label: int
    x: float
    y: float


@dataclass(frozen=True)
class Layer:
    """The points of one class, either those that a subset has or the others."""

    label: int
    chosen: bool
    points: tuple[Point, ...]


@dataclass(frozen=True)
class ExampleMap:
    """The examples that are drawn.

    seen_by: what placed them, in words.
    """

    points: tuple[Point, ...]
    seen_by: str

    def layers(self, chosen: Collection[int]) -> tuple[Layer, ...]:
        """What is drawn of a subset, one over the other: those that it has come last."""
        found: dict[tuple[bool, int], list[Point]] = {}
        for point in self.points:
            found.setdefault((point.row in chosen, point.label), []).append(point)
        return tuple(
            Layer(label, is_chosen, tuple(points))
            for (is_chosen, label), points in sorted(found.items())
        )


def draw(
    ids_M: Tensor, labels_N: NDArray[np.int64], features_MD: Tensor, seen_by: str
) -> ExampleMap:
    """The map of some rows.

    Args:
        ids_M: the rows, at least one.
        labels_N: of all examples.
        features_MD: of the rows.
        seen_by: whose features they are, in words.
    """
    places_M2 = principal_components(features_MD)
    pixels_M2 = placed(places_M2, width=WIDTH, height=HEIGHT, margin=_MARGIN)
    points = (
        Point(row, int(labels_N[row]), x, y)
        for row, (x, y) in zip(ids_M.tolist(), pixels_M2.tolist(), strict=True)
    )
    return ExampleMap(tuple(points), seen_by)


def open_templates(needed_for: str) -> Any:
    """jinja2's environment with the templates of this package.

    Args:
        needed_for: the command that makes the page, for the message where jinja2 is missing.

    Raises:
        MissingExtraError: jinja2 is not installed.
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
    return environment


def _finalize(value: Any) -> Any:
    """What a value is shown as, before it is escaped: a string without marks that act.

    What a macro made (a string of another class) has been through this already.
    """
    return escaped(value, keep="\n\t") if type(value) is str else value


def _source(name: str) -> str:
    return resources.files("lipt.trainer.report").joinpath(name).read_text("utf-8")


def rows_to_draw(
    num_examples: int, subsets: Sequence[NDArray[np.int64]], suspects: Sequence[int], seed: int
) -> Tensor:
    """The rows of a map, ascending: a random sample, more of each subset, the worst suspects."""
    order = np.random.default_rng(derive_seed(seed, "map")).permutation(num_examples)
    share = _MOST_CHOSEN // max(len(subsets), 1)
    parts = [order[:_MOST_AT_RANDOM], np.array(suspects[:MOST_SUSPECTS], np.int64)]
    parts += [order[np.isin(order, subset)][:share] for subset in subsets]
    return torch.from_numpy(np.unique(np.concatenate(parts)))


def principal_components(features_MD: Tensor) -> Tensor:
    """The points along the two directions in which they vary most; float64, M x 2."""
    centred_MD = features_MD.double() - features_MD.double().mean(dim=0)
    _, directions_DD = torch.linalg.eigh(centred_MD.T @ centred_MD)
    found = (centred_MD @ directions_DD.flip(1))[:, :2]
    places_M2 = centred_MD.new_zeros(len(centred_MD), 2)
    places_M2[:, : found.shape[1]] = found
    return places_M2


def placed(places_M2: Tensor, *, width: float, height: float, margin: float) -> Tensor:
    """Scale points to a rectangle with a margin, centred, with one scale for both axes."""
    places_M2 = places_M2.double()
    low_2, high_2 = places_M2.amin(dim=0), places_M2.amax(dim=0)
    size_2 = torch.tensor([width, height], dtype=torch.float64)
    scale = float(((size_2 - 2 * margin) / (high_2 - low_2).clamp(min=1e-9)).amin())
    return (places_M2 - (low_2 + high_2) / 2) * scale + size_2 / 2
