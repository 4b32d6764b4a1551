"""Margin: keep the examples on which the model hesitates between two classes.

By the two largest probabilities, whichever class is the right one. The same way round
balanced and not.

Shapes: N examples, B of a block, C classes, K budget.
Source: Coleman et al. 2020 (arXiv:1906.11829).
"""

from __future__ import annotations

from torch import Tensor

from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategies.probabilities import PROXY_PAPER, score_probabilities
from lipt.core.selection.strategy import CLASSES, Strategy
from lipt.core.signals.signals import Signals


def margin(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest margin, most uncertain first."""
    return keep_largest(-probability_margins(signals), budget)


def probability_margins(signals: Signals) -> Tensor:
    """The largest probability minus the second largest, in [0, 1]; N.

    A single class has no second: its margin is its probability.
    """

    def margins_of(probabilities_BC: Tensor) -> Tensor:
        if probabilities_BC.shape[1] == 1:
            return probabilities_BC[:, 0]
        top_B2 = probabilities_BC.topk(2, dim=-1).values
        return top_B2[:, 0] - top_B2[:, 1]

    return score_probabilities(signals, margins_of)


STRATEGY = Strategy(
    function=margin,
    summary="most uncertain: smallest margin between the two largest probabilities",
    paper=PROXY_PAPER,
    cost="N C",
    kinds=CLASSES,
)
