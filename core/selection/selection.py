"""Selection: what a strategy answers with."""

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
