"""Weighted draw: examples at random without replacement, each by its weight.

Waiting for events of given rates, the first K to happen are such a draw: the K largest of
log weight + Gumbel noise. All examples are drawn at once, and only logarithms are needed.

Shapes: N examples, K budget.
Source: Efraimidis & Spirakis 2006, "Weighted random sampling with a reservoir".
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.core.selection.selection import Selection, keep_largest


def draw_by_weight(log_weights_N: Tensor, budget: int, *, generator: torch.Generator) -> Selection:
    """Draw `budget` examples, in the order of the draw.

    What has no weight (a logarithm of -inf) is taken when nothing else is left, the lowest
    id first.

    Args:
        log_weights_N: up to a constant, in any floating type.
        budget: K, in 1..N.
        generator: where the noise is drawn; on the CPU.
    """
    waits_N = torch.empty(len(log_weights_N), dtype=torch.float64)
    waits_N.exponential_(generator=generator)
    noise_N = -waits_N.clamp_min(torch.finfo(torch.float64).tiny).log()
    return keep_largest(log_weights_N + noise_N.to(log_weights_N.device), budget)
