"""K-center: repeatedly take the example that is farthest from all taken ones.

The largest distance from an example to its nearest chosen one is at most twice the
smallest possible (Gonzalez 1985). One distance per example is kept, never k x N: a new
pick can only bring an example nearer.

Shapes: N examples, B rows computed together, K budget.
Source: Sener and Savarese 2018 (arXiv:1708.00489); Gonzalez 1985, "Clustering to Minimize
the Maximum Intercluster Distance".
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.core.selection.gradients.vectors import Rows, in_space
from lipt.core.selection.selection import Selection
from lipt.core.selection.solvers.greedy import choose_one_by_one
from lipt.core.selection.strategies.common_options import Space, needs_of_space
from lipt.core.selection.strategy import Strategy
from lipt.core.signals.signals import Signals


def kcenter(signals: Signals, budget: int, *, space: Space = "features") -> Selection:
    """Keep `budget` examples that are near to all, each farthest from those before it.

    The first is the one nearest to the mean: the same wherever it stands in the data, and
    the best guess at a single center. Ties keep data set order; once everything coincides
    with a chosen example, so do the rest.
    """
    rows = Rows(in_space(signals, space))
    started = False

    def approach(distances_N: Tensor, row_N: Tensor, _: int) -> None:
        nonlocal started
        if started:
            torch.minimum(distances_N, row_N, out=distances_N)
        else:
            distances_N.copy_(row_N)
            started = True

    return choose_one_by_one(
        -rows.squared_distances_from_mean(),
        budget,
        rows_of=rows.squared_distances,
        update=approach,
    )


STRATEGY = Strategy(
    function=kcenter,
    summary="repeatedly the example farthest from all chosen ones",
    paper=(
        'Sener and Savarese 2018, "Active Learning for Convolutional Neural Networks: A '
        'Core-Set Approach" (arXiv:1708.00489)'
    ),
    cost="N k d",
    needs=needs_of_space,
)
