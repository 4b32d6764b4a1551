"""Map of the examples: which ones are drawn, and where.

Some thousand points are what an eye and a page can take. They are a random sample, with enough
of every subset in it, and the suspects of the diagnosis.

Shapes: N examples of the data, M that are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.determinism.seeding import derive_seed
from lipt.trainer.report.tsne import tsne

WIDTH, HEIGHT = 480, 400
_MARGIN = 14
_MOST_AT_RANDOM = 1000
# Of all subsets together, beyond those that are drawn at random.
_MOST_CHOSEN = 500
# On data that is only hard, a sixth of all labels may be suspected.
MOST_SUSPECTS = 100


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


def rows_to_draw(
    num_examples: int, subsets: Sequence[NDArray[np.int64]], suspects: Sequence[int], seed: int
) -> Tensor:
    """The rows of a map, ascending: a random sample, more of each subset, the worst suspects.

    Args:
        num_examples: N.
        subsets: the rows of each.
        suspects: rows, the worst first.
        seed: decides the sample.

    Returns:
        int64, M.
    """
    order = np.random.default_rng(derive_seed(seed, "map")).permutation(num_examples)
    share = _MOST_CHOSEN // max(len(subsets), 1)
    parts = [order[:_MOST_AT_RANDOM], np.array(suspects[:MOST_SUSPECTS], np.int64)]
    parts += [order[np.isin(order, subset)][:share] for subset in subsets]
    return torch.from_numpy(np.unique(np.concatenate(parts)))


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
    places_M2 = tsne(features_MD).double()
    low_2, high_2 = places_M2.amin(dim=0), places_M2.amax(dim=0)
    room_2 = torch.tensor([WIDTH, HEIGHT], dtype=torch.float64) - 2 * _MARGIN
    # One scale for both axes, in the middle of what room there is.
    scale = float((room_2 / (high_2 - low_2).clamp(min=1e-9)).amin())
    middle_2 = torch.tensor([WIDTH, HEIGHT], dtype=torch.float64) / 2
    pixels_M2 = (places_M2 - (low_2 + high_2) / 2) * scale + middle_2
    points = (
        Point(row, int(labels_N[row]), x, y)
        for row, (x, y) in zip(ids_M.tolist(), pixels_M2.tolist(), strict=True)
    )
    return ExampleMap(tuple(points), seen_by)
