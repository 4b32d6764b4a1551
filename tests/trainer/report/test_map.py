from __future__ import annotations

import numpy as np
import pytest
import torch

from lipt.trainer.report.map import HEIGHT, WIDTH, ExampleMap, Point, draw


def test_points_fill_the_map_and_keep_their_proportions() -> None:
    ids = torch.tensor([4, 7, 9])
    corners = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0]])
    drawn = draw(ids, np.arange(10), lambda _: (corners, "a test"))  # three are not moved
    assert drawn.seen_by == "a test"
    assert [(point.row, point.label) for point in drawn.points] == [(4, 4), (7, 7), (9, 9)]
    assert all(0 < point.x < WIDTH and 0 < point.y < HEIGHT for point in drawn.points)
    places = np.array([(point.x, point.y) for point in drawn.points])
    first, second, third = (
        np.linalg.norm(places[a] - places[b]) for a, b in ((0, 1), (1, 2), (0, 2))
    )
    assert first / second == pytest.approx(2.0, abs=1e-4)
    assert third / second == pytest.approx(5**0.5, abs=1e-4)


def test_what_is_chosen_is_drawn_over_the_others() -> None:
    points = tuple(Point(row, row % 2, 0.0, 0.0) for row in range(4))
    layers = ExampleMap(points, "a test").layers({1, 2})
    assert [(layer.chosen, layer.label) for layer in layers] == [
        (False, 0),
        (False, 1),
        (True, 0),
        (True, 1),
    ]
    assert [[point.row for point in layer.points] for layer in layers] == [[0], [3], [2], [1]]
