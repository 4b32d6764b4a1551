"""Placing: points moved and scaled into a rectangle, without stretching what they form.

Shapes: M points.
"""

from __future__ import annotations

import torch
from torch import Tensor


def placed(places_M2: Tensor, *, width: float, height: float, margin: float) -> Tensor:
    """Points in the middle of a rectangle, as large as fits it.

    Args:
        places_M2: at least one, any floating type.
        width: of the rectangle.
        height: of the rectangle.
        margin: that stays free on every side.

    Returns:
        float64, M x 2; one scale for both axes.
    """
    places_M2 = places_M2.double()
    low_2, high_2 = places_M2.amin(dim=0), places_M2.amax(dim=0)
    size_2 = torch.tensor([width, height], dtype=torch.float64)
    scale = float(((size_2 - 2 * margin) / (high_2 - low_2).clamp(min=1e-9)).amin())
    return (places_M2 - (low_2 + high_2) / 2) * scale + size_2 / 2
