"""DUAL: hard and uncertain examples, and easier ones the fewer are kept.

The score is (1 - mean p) x (deviation of p), p the probability of the own label at each
moment. The moments are theta* (once) and all snapshots of the learners that were not trained
on the example, as one window; without snapshots, theta* and these learners, pruned. The
paper takes the mean of the score over all windows of 10 moments in a row, of 30 epochs of
training: `window` does so within each such learner's course, theta* its first moment. The Beta
distribution's mean p is over all these moments.

When few examples are kept, the hardest alone teach nothing. So examples are drawn, with
weights score x Beta(mean p; a, b), whose mode moves towards 1 (easy) as the share r that
is dropped grows:
    b = 15 (1 - mu) (1 - r^c),  a = 16 - b,
mu the mean p of the ten highest scores, c the option `exponent`.

Shapes: N examples, L learners, T moments of each (theta* first), K budget.
Source: Cho et al. 2025 (arXiv:2502.06905). They have one c per data set: 5.5 for CIFAR-10, 4
for CIFAR-100, 11 for ImageNet.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection.options import Preset
from lipt.core.selection.selection import Selection, draw_by_weight, keep_largest
from lipt.core.selection.strategy import DYNAMICS, Strategy
from lipt.core.signals.dynamics import deviation_over_moments, mean_over_moments
from lipt.core.signals.signals import Signals

Window = Annotated[int, Field(ge=2)] | Literal["all"]

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
    window: Annotated[
        Window, "moments of a learner that the score is taken over, or all of all learners"
    ] = "all",
    seed: int,
) -> Selection:
    """Keep `budget` examples, drawn without replacement or with the largest scores.

    An example whose score is 0 (p never changes, or is always 1) has no weight to be
    drawn with: it is taken when nothing else is left, the lowest id first.

    Returns:
        In the order of the draw, or largest first.
    """
    dynamics = signals.learners()
    probabilities_NLT, counted_NL = dynamics.probabilities_NLT, dynamics.counted_NL
    scores_N = uncertain_and_hard(probabilities_NLT, counted_NL, window)
    if sampling == "largest":
        return keep_largest(scores_N, budget)
    means_N = mean_over_moments(probabilities_NLT, counted_NL)
    anchors = keep_largest(scores_N, _NUM_ANCHORS).indices_K
    a, b = beta_parameters(
        float(means_N[anchors].mean()), dropped=1 - budget / len(signals), exponent=exponent
    )
    log_weights_N = scores_N.log() + log_beta_density(means_N, a, b)
    return draw_by_weight(log_weights_N, budget, generator=derive_generator(seed, "dual"))


def uncertain_and_hard(probabilities_NLT: Tensor, counted_NL: Tensor, window: Window) -> Tensor:
    """The score, in the mean over the windows of the learners that count; N float64.

    A learner with fewer moments than a window has is one window.
    """
    if window == "all":
        return _score(probabilities_NLT, counted_NL)
    _, num_learners, num_moments = probabilities_NLT.shape
    starts = range(max(1, num_moments - window + 1))
    total_N = torch.zeros_like(probabilities_NLT[:, 0, 0], dtype=torch.float64)
    for learner in range(num_learners):
        only = slice(learner, learner + 1)
        for start in starts:
            # Of one learner, all moments count once.
            course_N1T = probabilities_NLT[:, only, start : start + window]
            scores_N = _score(course_N1T, torch.ones_like(counted_NL[:, only]))
            total_N += scores_N.where(counted_NL[:, learner], 0)
    return total_N / (counted_NL.sum(dim=1) * len(starts))


def _score(probabilities_NLT: Tensor, counted_NL: Tensor) -> Tensor:
    means_N = mean_over_moments(probabilities_NLT, counted_NL)
    spreads_N = deviation_over_moments(probabilities_NLT, counted_NL, means_N)
    return (1 - means_N).clamp_min(0) * spreads_N


def beta_parameters(mu: float, *, dropped: float, exponent: float) -> tuple[float, float]:
    """The distribution of mean p to draw towards, (a, b); `dropped` is r."""
    b = _CONCENTRATION * (1 - mu) * (1 - dropped**exponent)
    return _CONCENTRATION + 1 - b, b


def log_beta_density(means_N: Tensor, a: float, b: float) -> Tensor:
    """The logarithm of Beta's density, up to a constant: it weighs examples by each other."""
    inside_N = means_N.clamp(_EDGE, 1 - _EDGE)
    return (a - 1) * inside_N.log() + (b - 1) * (1 - inside_N).log()


def _of_data(name: str, exponent: str) -> Preset:
    return Preset(
        f"{name}: exponent {exponent}, windows of 10 moments; classes as they come",
        {"sampling": "beta", "exponent": exponent, "window": "10"},
        balanced=False,
    )


STRATEGY = Strategy(
    function=dual,
    summary="hard and uncertain while learners train, drawn easier the fewer are kept",
    paper=(
        'Cho et al. 2025, "Lightweight Dataset Pruning without Full Training via Example '
        'Difficulty and Prediction Uncertainty" (arXiv:2502.06905)'
    ),
    cost="N",
    needs=DYNAMICS,
    revision=1,
    presets={
        "paper": _of_data("on CIFAR-10", "5.5"),
        "paper-cifar100": _of_data("on CIFAR-100", "4"),
        "paper-imagenet": _of_data("on ImageNet", "11"),
    },
)
