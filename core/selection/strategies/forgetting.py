"""Forgetting events: keep the examples that learners get right and then wrong again.

Events are counted per learner, in the mean over those that were not trained on the example,
so that examples of a shard, which have one learner less, are on the same scale.

An example that none of them ever gets right was never learned: it counts as forgotten
infinitely often and comes first. (Scored 0, as in some libraries, the hardest examples
of all would be the first to be dropped.)

Each learner's course is theta* and its snapshots, the last of them before it was pruned:
T moments, T / 2 events at most. Without snapshots it is theta* and the pruned learner, and one
event at most. So scores take few values and ties are common: the smaller mean margin goes
first (theta* counted once), then the lower id.

Shapes: N examples, L learners, T moments of each (theta* first), K budget.
Source: Toneva et al. 2019 (arXiv:1812.05159).
"""

from __future__ import annotations

import math

from torch import Tensor

from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategy import DYNAMICS, Strategy
from lipt.core.signals.dynamics import mean_over_moments
from lipt.core.signals.signals import Signals


def forgetting(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples that are forgotten most often, never learned ones first."""
    dynamics = signals.learners()
    margins_NLT, counted_NL = dynamics.margins_NLT, dynamics.counted_NL
    by_margin_N = mean_over_moments(margins_NLT, counted_NL).argsort(stable=True)
    events_N = forgetting_events(margins_NLT, counted_NL)[by_margin_N]
    return unweighted(by_margin_N[events_N.argsort(descending=True, stable=True)[:budget]])


def forgetting_events(margins_NLT: Tensor, counted_NL: Tensor) -> Tensor:
    """How often a learner forgets each example, in the mean over those that count; N, float64.

    An event is a step from right (a margin above 0) to wrong between consecutive moments
    of a learner. Infinite for an example that is wrong at every moment of every learner.
    """
    right_NLT = (margins_NLT > 0) & counted_NL[:, :, None]
    forgotten_NLT = right_NLT[:, :, :-1] & ~right_NLT[:, :, 1:]
    learned_N = right_NLT.flatten(1).any(dim=1)
    events_N = forgotten_NLT.sum(dim=(1, 2)).double() / counted_NL.sum(dim=1)
    return events_N.masked_fill_(~learned_N, math.inf)


STRATEGY = Strategy(
    function=forgetting,
    summary="most often right and then wrong again while learners train; never right first",
    paper=(
        'Toneva et al. 2019, "An Empirical Study of Example Forgetting during Deep Neural '
        'Network Learning" (arXiv:1812.05159)'
    ),
    cost="N",
    needs=DYNAMICS,
    revision=1,
)
