"""Training dynamics of the learners: AUM, forgetting, DUAL and disagreement.

Moments are theta* and a learner's snapshots, or theta* and the pruned learner without snapshots.
Learners do not count on their own training examples; theta* counts once.

Shapes: N examples, L learners, T moments of each (theta* first), K budget.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.errors import SignalsError
from lipt.core.selection.selection import Selection, draw_by_weight, keep_largest, unweighted
from lipt.core.selection.strategy import Cost, Growth, Preset, built_in
from lipt.core.signals.dynamics import Dynamics, deviation_over_moments, mean_over_moments

Window = Annotated[int, Field(ge=2)] | Literal["all"]

_CONCENTRATION = 15.0
_NUM_ANCHORS = 10
# The density is 0 or infinite at probabilities of 0 and 1.
_EDGE = 1e-6
_MIN_LEARNERS = 2


@built_in(
    summary="smallest mean margin of the own label while learners train",
    paper='Pleiss et al. 2020, "Area Under the Margin Ranking" (arXiv:2001.10528)',
    cost=Cost(Growth.LINEAR, "N"),
    revision=1,
)
def aum(dynamics: Dynamics, budget: int) -> Selection:
    """Keep the `budget` examples with the smallest mean margin, smallest first.

    The margin is the label's logit minus the largest other one. The smallest are often mislabelled.
    """
    return keep_largest(-mean_margins(dynamics), budget)


def mean_margins(dynamics: Dynamics) -> Tensor:
    """The area under the margin of each example; N float64."""
    return mean_over_moments(dynamics.margins_NLT, dynamics.counted_NL)


@built_in(
    summary="most often right, then wrong again while learners train",
    paper='Toneva et al. 2019, "Example Forgetting" (arXiv:1812.05159)',
    cost=Cost(Growth.LINEAR, "N"),
    revision=1,
)
def forgetting(dynamics: Dynamics, budget: int) -> Selection:
    """Keep the `budget` examples that are forgotten most often, never learned ones first.

    Steps from right to wrong count. An example that no learner ever gets right counts as forgotten
    infinitely often. Of ties, which are common, the smaller mean margin goes first.
    """
    by_margin_N = mean_margins(dynamics).argsort(stable=True)
    events_N = forgetting_events(dynamics.margins_NLT, dynamics.counted_NL)[by_margin_N]
    return unweighted(by_margin_N[events_N.argsort(descending=True, stable=True)[:budget]])


def forgetting_events(margins_NLT: Tensor, counted_NL: Tensor) -> Tensor:
    """Steps from right to wrong, mean over counted learners, inf if never right; N float64."""
    right_NLT = (margins_NLT > 0) & counted_NL[:, :, None]
    forgotten_NLT = right_NLT[:, :, :-1] & ~right_NLT[:, :, 1:]
    learned_N = right_NLT.flatten(1).any(dim=1)
    events_N = forgotten_NLT.sum(dim=(1, 2)).double() / counted_NL.sum(dim=1)
    return events_N.masked_fill_(~learned_N, math.inf)


def _of_data(name: str, exponent: str) -> Preset:
    return Preset(
        f"{name}: exponent {exponent}, windows of 10 moments; classes as they come",
        {"exponent": exponent, "window": "10"},
        balanced=False,
    )


@built_in(
    summary="hard and uncertain while learners train",
    paper='Cho et al. 2025, "Dataset Pruning without Full Training" (arXiv:2502.06905)',
    cost=Cost(Growth.LINEAR, "N"),
    revision=1,
    presets={
        "paper": _of_data("on CIFAR-10", "5.5"),
        "paper-cifar100": _of_data("on CIFAR-100", "4"),
        "paper-imagenet": _of_data("on ImageNet", "11"),
    },
    is_random=True,
)
def dual(
    dynamics: Dynamics,
    budget: int,
    *,
    exponent: Annotated[float, Field(gt=0.0), "larger values favor easy examples less"] = 5.5,
    window: Annotated[
        Window, "moments of a learner that the score is taken over, or all of all learners"
    ] = "all",
    seed: int,
) -> Selection:
    """Draw `budget` hard and uncertain examples without replacement, easier ones for small budgets.

    The score is (1 - mean p) x (deviation of p), p the label's probability at each moment. All
    moments are one window, or `window` consecutive moments of a learner (paper: 10).

    At small budgets the hardest examples alone teach nothing. So examples are drawn with weights
    score x Beta(mean p; a, b), whose mode moves towards 1 (easy) as the dropped share r grows: b =
    15 (1 - mu) (1 - r^c), a = 16 - b, mu the mean p of the ten highest scores. c is 5.5 for
    CIFAR-10, 4 for CIFAR-100, 11 for ImageNet. Examples of score 0 come last.
    """
    probabilities_NLT, counted_NL = dynamics.probabilities_NLT, dynamics.counted_NL
    scores_N = uncertain_and_hard(probabilities_NLT, counted_NL, window)
    means_N = mean_over_moments(probabilities_NLT, counted_NL)
    anchors = keep_largest(scores_N, _NUM_ANCHORS).indices_K
    a, b = beta_parameters(
        float(means_N[anchors].mean()), dropped=1 - budget / len(dynamics), exponent=exponent
    )
    log_weights_N = scores_N.log() + log_beta_density(means_N, a, b)
    return draw_by_weight(log_weights_N, budget, generator=derive_generator(seed, "dual"))


def uncertain_and_hard(probabilities_NLT: Tensor, counted_NL: Tensor, window: Window) -> Tensor:
    """DUAL's score, the mean over the windows of the counted learners; N float64."""
    if window == "all":
        return _score(probabilities_NLT, counted_NL)
    _, num_learners, num_moments = probabilities_NLT.shape
    starts = range(max(1, num_moments - window + 1))
    total_N = torch.zeros_like(probabilities_NLT[:, 0, 0], dtype=torch.float64)
    for learner in range(num_learners):
        only = slice(learner, learner + 1)
        for start in starts:
            # With one learner, all moments count once.
            course_N1T = probabilities_NLT[:, only, start : start + window]
            scores_N = _score(course_N1T, torch.ones_like(counted_NL[:, only]))
            total_N += scores_N.where(counted_NL[:, learner], 0)
    return total_N / (counted_NL.sum(dim=1) * len(starts))


def _score(probabilities_NLT: Tensor, counted_NL: Tensor) -> Tensor:
    means_N = mean_over_moments(probabilities_NLT, counted_NL)
    spreads_N = deviation_over_moments(probabilities_NLT, counted_NL, means_N)
    return (1 - means_N).clamp_min(0) * spreads_N


def beta_parameters(mu: float, *, dropped: float, exponent: float) -> tuple[float, float]:
    """The pair (a, b); `dropped` is r."""
    b = _CONCENTRATION * (1 - mu) * (1 - dropped**exponent)
    return _CONCENTRATION + 1 - b, b


def log_beta_density(means_N: Tensor, a: float, b: float) -> Tensor:
    """The logarithm of Beta's density, up to a constant."""
    inside_N = means_N.clamp(_EDGE, 1 - _EDGE)
    return (a - 1) * inside_N.log() + (b - 1) * (1 - inside_N).log()


@built_in(
    summary="largest variance of the probabilities among the learners",
    paper='Lakshminarayanan et al. 2017, "Deep Ensembles" (arXiv:1612.01474)',
    cost=Cost(Growth.LINEAR, "N"),
    revision=1,
)
def disagreement(dynamics: Dynamics, budget: int) -> Selection:
    """Keep the `budget` examples with the largest summed variance of the probabilities."""
    num_learners = dynamics.error_norms_NL.shape[1]
    if num_learners < _MIN_LEARNERS:
        raise SignalsError(
            f"disagreement needs at least {_MIN_LEARNERS} learners, and {num_learners} took part "
            "in the run. Start a run with a larger learners.num_learners, or take el2n."
        )
    return keep_largest(dynamics.disagreement_N, budget)
