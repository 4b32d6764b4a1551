"""Statistics over all states of all learners, theta* counted once.

All learners share theta*: counted once per learner it would weigh L times as much as
any other state.

Every sum is taken one state after the other, so that it is the same for equal examples
wherever they stand and however many there are: ties stay ties.

Shapes: N examples, L learners, T moments of each (theta* first).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.coordinator.signals.dynamics import Dynamics
from lipt.coordinator.signals.signals import Signals


def moments(values_NLT: Tensor) -> Iterator[Tensor]:
    """Every state's values, N in float64: theta* once, then learner after learner."""
    _, num_learners, num_moments = values_NLT.shape
    yield values_NLT[:, 0, 0].double()
    for learner in range(num_learners):
        for moment in range(1, num_moments):
            yield values_NLT[:, learner, moment].double()


def mean_over_moments(values_NLT: Tensor) -> Tensor:
    """The mean over the 1 + L (T - 1) states; N, float64."""
    return _mean(moments(values_NLT))


def deviation_over_moments(values_NLT: Tensor, means_N: Tensor) -> Tensor:
    """The population standard deviation over the same states; N, float64.

    Args:
        values_NLT: any values.
        means_N: their `mean_over_moments`.
    """
    return _mean((values_N - means_N).square() for values_N in moments(values_NLT)).sqrt()


def mean_over_learners(values_NL: Tensor) -> Tensor:
    """The mean over the committed learners; N, float64."""
    return _mean(values_N.double() for values_N in values_NL.unbind(dim=1))


def _mean(parts: Iterator[Tensor]) -> Tensor:
    total_N = next(parts).clone()
    count = 1
    for values_N in parts:
        total_N += values_N
        count += 1
    return total_N / count


def require_dynamics(signals: Signals, strategy: str) -> Dynamics:
    """The learners' view of the examples.

    Raises:
        SignalsError: it was not computed.
    """
    if signals.dynamics is None:
        raise SignalsError(
            f"{strategy} needs to know how the learners came to see the examples, which was not "
            "computed. Ask on a run's own weights: leave `weights` unset."
        )
    return signals.dynamics
