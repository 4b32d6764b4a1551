"""AUM: keep the examples with the smallest area under the margin, the hardest ones.

The margin is the logit of the own label minus the largest other one; its mean is taken
over theta* (once) and all states of all learners. The paper looks at both ends: the very
smallest are often mislabelled.

Shapes: N examples, L learners, T moments of each (theta* first), K budget.
Source: Pleiss et al. 2020, "Identifying Mislabeled Data using the Area Under the Margin
Ranking" (arXiv:2001.10528).
"""

from __future__ import annotations

from lipt.coordinator.selection.selection import Selection, keep_largest
from lipt.coordinator.signals.moments import mean_over_moments, require_dynamics
from lipt.coordinator.signals.signals import Signals


def aum(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest mean margin, smallest first.

    Raises:
        SignalsError: the signals have no dynamics.
    """
    return keep_largest(-mean_over_moments(require_dynamics(signals, "aum").margins_NLT), budget)
