"""The smallest distances of rows whose ties are known."""

from __future__ import annotations

import torch

from lipt.core.selection.solvers.smallest import nearest


def test_nearest_sorts_by_distance_and_then_by_column() -> None:
    rounding = 2.0**-50
    distances = torch.tensor(
        [[3.0, 1.0 + rounding, 1.0, torch.inf, 0.5], [0.0, 0.0, torch.inf, 1e-300, 0.0]],
        dtype=torch.float64,
    )
    assert nearest(distances, 4).tolist() == [[4, 1, 2, 0], [0, 1, 4, 3]]


def test_distances_are_rounded_to_the_nearest_and_then_tie() -> None:
    below_1 = 1.0 - 2.0**-53
    assert nearest(torch.tensor([[1.0, below_1]], dtype=torch.float64), 2).tolist() == [[0, 1]]
