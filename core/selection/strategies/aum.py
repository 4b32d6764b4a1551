"""AUM: keep the examples with the smallest area under the margin, the hardest ones.

The margin is the logit of the own label minus the largest other one; its mean is taken
over theta* (once) and all snapshots of the learners that were not trained on the example, or
these learners as they were pruned where there are no snapshots. The paper looks at both ends:
the very smallest are often mislabelled.

Shapes: N examples, L learners, T moments of each (theta* first), K budget.
Source: Pleiss et al. 2020 (arXiv:2001.10528).
"""

from __future__ import annotations

from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategy import DYNAMICS, Strategy
from lipt.core.signals.dynamics import mean_over_moments
from lipt.core.signals.signals import Signals


def aum(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest mean margin, smallest first."""
    dynamics = signals.learners()
    return keep_largest(-mean_over_moments(dynamics.margins_NLT, dynamics.counted_NL), budget)


STRATEGY = Strategy(
    function=aum,
    summary="smallest mean margin of the own label's logit while learners train",
    paper=(
        'Pleiss et al. 2020, "Identifying Mislabeled Data using the Area Under the Margin '
        'Ranking" (arXiv:2001.10528)'
    ),
    cost="N",
    needs=DYNAMICS,
    revision=1,
)
