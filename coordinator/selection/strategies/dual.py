"""DUAL: hard and uncertain examples, and easier ones the fewer are kept.

The score is (1 - mean p) x (deviation of p), p the probability of the own label at each
moment. The paper takes windows of 10 in 30 epochs of training; here the moments are
theta* (once) and all states of all learners, as one window.

When few examples are kept, the hardest alone teach nothing. So examples are drawn, with
weights score x Beta(mean p; a, b), whose mode moves towards 1 (easy) as the share r that
is dropped grows:
    b = 15 (1 - mu) (1 - r^c),  a = 16 - b,
mu the mean p of the ten highest scores, c the option `exponent`.

Shapes: N examples, L learners, T moments of each (theta* first), K budget.
Source: Cho et al. 2025 (arXiv:2502.06905). They have one c per data set, larger for easier
ones.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from lipt.common.determinism.seeding import derive_generator
from lipt.coordinator.selection.selection import Selection, keep_largest
from lipt.coordinator.selection.solvers.weighted_draw import draw_by_weight
from lipt.coordinator.selection.strategy import DYNAMICS, Strategy
from lipt.coordinator.signals.dynamics import deviation_over_moments, mean_over_moments
from lipt.coordinator.signals.signals import Signals

_CONCENTRATION = 15.0
_NUM_ANCHORS = 10
# The density is 0 or infinite at 0 and 1, where float32 probabilities do arrive.
_EDGE = 1e-6


def dual(
    signals: Signals,
    budget: int,
    *,
    sampling: Annotated[
        Literal["beta", "largest"],
        "draw towards easier examples for small budgets, or keep the largest",
    ] = "beta",
    exponent: Annotated[float, Field(gt=0.0), "larger values favor easy examples less"] = 5.5,
    seed: int,
) -> Selection:
    """Keep `budget` examples, drawn without replacement or with the largest scores.

    An example whose score is 0 (p never changes, or is always 1) has no weight to be
    drawn with: it is taken when nothing else is left, the lowest id first.

    Returns:
        In the order of the draw, or largest first.
    """
    probabilities_NLT = signals.learners().probabilities_NLT
    means_N = mean_over_moments(probabilities_NLT)
    scores_N = (1 - means_N).clamp_min(0) * deviation_over_moments(probabilities_NLT, means_N)
    if sampling == "largest":
        return keep_largest(scores_N, budget)
    anchors = keep_largest(scores_N, _NUM_ANCHORS).indices_K
    a, b = beta_parameters(
        float(means_N[anchors].mean()), dropped=1 - budget / len(signals), exponent=exponent
    )
    log_weights_N = scores_N.log() + log_beta_density(means_N, a, b)
    return draw_by_weight(log_weights_N, budget, generator=derive_generator(seed, "dual"))


def beta_parameters(mu: float, *, dropped: float, exponent: float) -> tuple[float, float]:
    """The distribution of mean p to draw towards, (a, b); `dropped` is r."""
    b = _CONCENTRATION * (1 - mu) * (1 - dropped**exponent)
    return _CONCENTRATION + 1 - b, b


def log_beta_density(means_N: Tensor, a: float, b: float) -> Tensor:
    """The logarithm of Beta's density, up to a constant: it weighs examples by each other."""
    inside_N = means_N.clamp(_EDGE, 1 - _EDGE)
    return (a - 1) * inside_N.log() + (b - 1) * (1 - inside_N).log()


STRATEGY = Strategy(
    function=dual,
    summary="hard and uncertain while learners train, drawn easier the fewer are kept",
    paper=(
        'Cho et al. 2025, "Lightweight Dataset Pruning without Full Training via Example '
        'Difficulty and Prediction Uncertainty" (arXiv:2502.06905)'
    ),
    cost="N",
    needs=DYNAMICS,
)
