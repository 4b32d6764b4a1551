"""Disagreement: keep the examples that the learners see most differently.

Every learner has seen a shard of its own. Where they disagree, what they have seen
decides: the variance of their probabilities, summed over the classes, is largest there.
(L - 1) / L of it is what the mean of their probabilities gains over one of them, in Brier
score. The learner that was trained on an example is not asked, where two others are there;
dividing by one less than the number of those asked keeps all examples on one scale.

Shapes: N examples, L learners, K budget.
Source: LiPT's own ensemble; the variance among the members of an ensemble as uncertainty
is that of Lakshminarayanan et al. 2017 (arXiv:1612.01474).
"""

from __future__ import annotations

from lipt.common.errors import SignalsError
from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategy import DYNAMICS, Strategy
from lipt.core.signals.signals import Signals

_MIN_LEARNERS = 2


def disagreement(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` examples with the largest variance among learners, largest first.

    Raises:
        SignalsError: there is only one learner.
    """
    dynamics = signals.learners()
    num_learners = dynamics.error_norms_NL.shape[1]
    if num_learners < _MIN_LEARNERS:
        raise SignalsError(
            f"disagreement needs at least {_MIN_LEARNERS} learners, and {num_learners} took part "
            "in the run. Start a run with a larger learners.num_learners, or take el2n."
        )
    return keep_largest(dynamics.disagreement_N, budget)


STRATEGY = Strategy(
    function=disagreement,
    summary="largest variance of the probabilities among the learners",
    paper=(
        'Lakshminarayanan et al. 2017, "Simple and Scalable Predictive Uncertainty '
        'Estimation using Deep Ensembles" (arXiv:1612.01474)'
    ),
    cost="N",
    needs=DYNAMICS,
    revision=1,
)
