"""The last step of every score-based strategy: the largest scores.

Shapes: N examples, K budget.
"""

from __future__ import annotations

from torch import Tensor

from lipt.coordinator.selection.selection import Selection, unweighted


def keep_largest(scores_N: Tensor, budget: int) -> Selection:
    """Keep the `budget` examples with the largest scores, largest first, each with weight 1.

    Ties keep data set order, so equal scores resolve the same way every time.
    """
    return unweighted(scores_N.argsort(descending=True, stable=True)[:budget])
