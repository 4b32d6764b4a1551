"""Loss drop: the examples whose loss falls most when a short learner has seen the target.

An example with a wrong answer, or with the target's words for another task, gets a larger loss.
Its words cannot show that.

Shapes: N examples, K of them chosen.
Source: Train on Validation (arXiv:2510.00386).
"""

from __future__ import annotations

import torch
from torch import Tensor


def loss_drops(before_N: Tensor, after_N: Tensor) -> Tensor:
    """(before - after) / before; 0 where nothing was left to learn."""
    before_N, after_N = before_N.double(), after_N.double()
    return torch.where(before_N > 0, (before_N - after_N) / before_N.clamp(min=1e-12), 0.0)


def largest_drops(before_N: Tensor, after_N: Tensor, budget: int) -> Tensor:
    """Positions of the `budget` largest drops, ascending; ties keep the order of the data."""
    order_N = loss_drops(before_N, after_N).argsort(descending=True, stable=True)
    return order_N[:budget].sort().values
