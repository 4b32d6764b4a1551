"""The smallest distances of rows whose ties are known."""

from __future__ import annotations

import torch

from lipt.coordinator.selection.solvers.smallest import nearest


def test_nearest_sorts_by_distance_and_then_by_column() -> None:
    rounding = 2.0**-50
    distances = torch.tensor(
        [[3.0, 1.0 + rounding, 1.0, torch.inf, 0.5], [0.0, 0.0, torch.inf, 1e-300, 0.0]],
        dtype=torch.float64,
    )
    assert nearest(distances, 4).tolist() == [[4, 1, 2, 0], [0, 1, 4, 3]]
