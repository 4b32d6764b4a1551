"""Map of the examples: points in pixels, and what is drawn over what.

Shapes: N examples of the data, M that are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.maps import placed, principal_components

WIDTH, HEIGHT = 480, 400
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
    ids_M: Tensor,
    labels_N: NDArray[np.int64],
    features_of: Callable[[Tensor], tuple[Tensor, str]],
) -> ExampleMap:
    """The map of some rows.

    Args:
        ids_M: the rows, at least one.
        labels_N: of all examples.
        features_of: gives the features of rows, M x D, and whose they are.
    """
    features_MD, seen_by = features_of(ids_M)
    places_M2 = principal_components(features_MD)
    pixels_M2 = placed(places_M2, width=WIDTH, height=HEIGHT, margin=_MARGIN)
    points = (
        Point(row, int(labels_N[row]), x, y)
        for row, (x, y) in zip(ids_M.tolist(), pixels_M2.tolist(), strict=True)
    )
    return ExampleMap(tuple(points), seen_by)
