"""What a strategy answers with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """The chosen examples, as positions in the signals, and how much each counts.

    indices_K: int64, distinct, in the order of choice.
    weights_K: float32, one per index; ones where the strategy has no weights.
    """

    indices_K: Tensor
    weights_K: Tensor
