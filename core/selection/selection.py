"""Selection: what a strategy answers with, and the simplest ways to make one.

Shapes: N examples, K budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """The chosen examples, as positions in the signals, and how much each counts.

    indices_K: int64, distinct, in the order of choice.
    weights_K: float32, one per index; ones where the strategy has no weights.
    stopped_early: why there are fewer than the budget, as a sentence; empty where there
        are not. A strategy that has nothing left to gain says so, and never pads.
    findings: what a strategy that looks before it chooses has found and decided, as JSON.
    """

    indices_K: Tensor
    weights_K: Tensor
    stopped_early: str = ""
    findings: Mapping[str, Any] = field(default_factory=dict)


def unweighted(indices_K: Tensor) -> Selection:
    """A selection in which every example counts the same."""
    return Selection(indices_K, torch.ones(len(indices_K), device=indices_K.device))


def keep_largest(scores_N: Tensor, budget: int) -> Selection:
    """Keep the `budget` examples with the largest scores, largest first, each with weight 1.

    Ties keep data set order, so equal scores resolve the same way every time.
    """
    return unweighted(scores_N.argsort(descending=True, stable=True)[:budget])


def draw_by_weight(log_weights_N: Tensor, budget: int, *, generator: torch.Generator) -> Selection:
    """Draw `budget` examples, in the order of the draw.

    The K largest of log weight + Gumbel noise, all drawn at once (Efraimidis & Spirakis 2006,
    "Weighted random sampling with a reservoir").

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
