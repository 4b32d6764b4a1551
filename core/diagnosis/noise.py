"""Noise: the share of wrong labels, with an interval, from a head's held-out probabilities.

Two estimates err in opposite directions, and the interval covers both.

Surest: most disagreement in the surest fifth of each predicted class is noise. The head's own error
grows with the rank, from zero at the surest: a line fitted to disagreement over the root of the
rank, read at rank 0, removes it. A line over the rank itself ends higher: this interval reaches
from the lower end of one to the upper end of the other. It is too high where the head is unsure of
all examples, and fails for a class that is mostly relabelled to one other.

Mixture: a label is likely with (1 - eta) p_y + eta (1 - p_y) / (C - 1), where p are the head's
probabilities at another temperature, and a share eta is wrong. Its likelihood ends where it falls
by 1.92, chi-squared's 95%. The head's doubts explain disagreement first, so it is too low where
classes are confused with each other.

Real probabilities are no softmax, so both ends move by a share of the error that the head itself
expects: see docs/diagnosis.md for what that was calibrated on.

Shapes: N examples, M of a sample, S the surest, C classes, T temperatures, E values of eta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.diagnosis.findings import SKILL, skill_of
from lipt.core.passes import row_blocks
from lipt.core.proxies.ridge import class_weights, fullness
from lipt.core.signals.signals import probabilities_of
from lipt.data.groups import members, ranks_in_groups

# Share of a predicted class that is surest, and its minimum number of examples.
_SUREST, _FEWEST = 0.2, 20
# Standard deviations of the normal distribution's 95% interval, and half of chi-squared's.
_DEVIATIONS, _LIKELIHOOD_FALL = 1.96, 1.92
# Widest interval inside of which one number says more than its ends.
_WIDEST = 0.2
# Of the error that the head expects: 852 of 864 heads of docs/diagnosis.md then cover the truth.
_MISFIT = 0.1
_MOST_FITTED = 10_000
_TEMPERATURES_T = tuple(2.0 ** (power / 3) for power in range(-4, 16))
# Finest near 0.
_SHARES_E = tuple(0.9 * (step / 60) ** 2 for step in range(61))
_SMALLEST = 1e-6


@dataclass(frozen=True)
class NoiseRate:
    """A share of labels, and the ends of its 95% interval; all in [0, 1]."""

    rate: float
    low: float
    high: float

    @classmethod
    def bounded(cls, rate: float, low: float, high: float) -> Self:
        """In order and in [0, 1], which rounding may leave."""
        rate, low, high = (min(1.0, max(0.0, share)) for share in (rate, low, high))
        return cls(rate, min(low, rate), max(rate, high))

    @property
    def known_rate(self) -> float | None:
        """The rate, or None if the interval is too wide for it to say anything."""
        return self.rate if self.high - self.low <= _WIDEST else None


# Nothing can be said.
_UNKNOWN = NoiseRate(0.0, 0.0, 1.0)


@dataclass(frozen=True)
class NoiseRates:
    """Shares of wrong labels, of all and of each given class; 0 for a class without examples."""

    overall: NoiseRate
    per_class: tuple[NoiseRate, ...]


def noise_rates(
    errors_NC: Tensor, labels_N: Tensor, suggested_N: Tensor, sureness_N: Tensor
) -> NoiseRates:
    """Estimate the share of wrong labels; nothing is known of fewer than 20 examples."""
    num_classes = errors_NC.shape[1]
    if len(labels_N) < _FEWEST:
        return NoiseRates(_UNKNOWN, (_UNKNOWN,) * num_classes)
    surest = rates_of_surest(labels_N, suggested_N, sureness_N, num_classes)
    mixture = mixture_rate(errors_NC, labels_N)
    below = 1.0
    if _skill(labels_N, suggested_N) >= SKILL:
        below = max(0.0, surest.overall.low - mixture.low)
    above = max(0.0, mixture.high - surest.overall.high)
    # A class's interval is widened as much as that of all.
    return NoiseRates(
        _widened(surest.overall, below, above),
        tuple(_widened(rate, below, above) if rate.high else rate for rate in surest.per_class),
    )


def _skill(labels_N: Tensor, suggested_N: Tensor) -> float:
    right = float(class_weights(labels_N) @ (labels_N == suggested_N).double()) / len(labels_N)
    return skill_of(right, float(fullness(labels_N.bincount()).sum()))


def _widened(rate: NoiseRate, below: float, above: float) -> NoiseRate:
    return NoiseRate.bounded(rate.rate, rate.low - below, rate.high + above)


def mixture_rate(errors_NC: Tensor, labels_N: Tensor) -> NoiseRate:
    """The most likely share of wrong labels under the mixture, on a sample of the examples."""
    generator = derive_generator(0, "noise rate")
    ids_M = torch.randperm(len(labels_N), generator=generator)[:_MOST_FITTED].to(labels_N.device)
    labels_M, present_C = labels_N[ids_M], labels_N.bincount(minlength=errors_NC.shape[1]) > 0
    num_wrong = max(1, int(present_C.sum()) - 1)
    shares_E = torch.tensor(_SHARES_E, dtype=torch.float64, device=labels_N.device)
    likelihoods_TE = shares_E.new_zeros(len(_TEMPERATURES_T), len(shares_E))
    doubts_T = shares_E.new_zeros(len(_TEMPERATURES_T))
    for rows in row_blocks(len(ids_M), 16 * errors_NC.shape[1]):
        labels_B = labels_M[rows]
        probabilities_BC = probabilities_of(errors_NC[ids_M[rows]], labels_B)[:, present_C]
        logs_BC = probabilities_BC.clamp(min=_SMALLEST).log_()
        own_B = present_C.cumsum(dim=0)[labels_B] - 1
        for place, inverse_temperature in enumerate(_TEMPERATURES_T):
            tempered_BC = (inverse_temperature * logs_BC).softmax(dim=-1)
            right_B1 = tempered_BC.gather(1, own_B[:, None]).double()
            likely_BE = (1 - shares_E) * right_B1 + shares_E / num_wrong * (1 - right_B1)
            likelihoods_TE[place] += likely_BE.clamp_(min=1e-300).log_().sum(dim=0)
            doubts_T[place] += (1 - tempered_BC.amax(dim=-1).double()).sum()
    profile_E, best_E = likelihoods_TE.max(dim=0)
    best = int(profile_E.argmax())
    likely = shares_E[profile_E >= profile_E[best] - _LIKELIHOOD_FALL]
    misfit = _MISFIT * float(doubts_T[best_E[best]]) / len(ids_M)
    ends = float(likely.min()) - misfit, float(likely.max()) + misfit
    return NoiseRate.bounded(float(shares_E[best]), *ends)


def rates_of_surest(
    labels_N: Tensor, suggested_N: Tensor, sureness_N: Tensor, num_classes: int
) -> NoiseRates:
    """Estimate how many labels are wrong from the examples that the head is surest of."""
    ids_S, ranks_S, weights_S = _most_confident(suggested_N, sureness_N, num_classes)
    given_S = labels_N[ids_S]
    wrong_S = (given_S != suggested_N[ids_S]).double()
    overall = _rate(ranks_S, weights_S, wrong_S)
    per_class = []
    counts = labels_N.bincount(minlength=num_classes).tolist()
    for own_S, count in zip(members(given_S, num_classes), counts, strict=True):
        if not count:
            per_class.append(NoiseRate(0.0, 0.0, 0.0))
        elif not len(own_S):
            # None of its examples is among the surest: the rate is unknown.
            per_class.append(NoiseRate(overall.rate, 0.0, 1.0))
        else:
            per_class.append(_rate(ranks_S[own_S], weights_S[own_S], wrong_S[own_S]))
    return NoiseRates(overall, tuple(per_class))


def _most_confident(
    suggested_N: Tensor, sureness_N: Tensor, num_classes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The surest examples of each predicted class, their ranks there, and what each stands for."""
    by_sureness_N = sureness_N.argsort(descending=True, stable=True)
    order_N = by_sureness_N[suggested_N[by_sureness_N].argsort(stable=True)]
    class_N, counts_C = suggested_N[order_N], suggested_N.bincount(minlength=num_classes).double()
    kept_C = (_SUREST * counts_C).round().clamp(min=_FEWEST).minimum(counts_C)
    ranks_N = ranks_in_groups(class_N).double()
    is_kept_N = ranks_N < kept_C[class_N]
    class_S = class_N[is_kept_N]
    ranks_S, weights_S = (ranks_N[is_kept_N] + 0.5) / kept_C[class_S], (counts_C / kept_C)[class_S]
    return order_N[is_kept_N], ranks_S, weights_S


def _rate(ranks_S: Tensor, weights_S: Tensor, wrong_S: Tensor) -> NoiseRate:
    shares_S = weights_S / weights_S.sum()
    mean = float(shares_S @ wrong_S)
    ends, rates = [], []
    for growth_S in (ranks_S.sqrt(), ranks_S):
        factors_S = _at_rank_zero(growth_S, shares_S)
        first = float(factors_S @ wrong_S)
        below, above = _wilson(mean, factors_S)
        # Callers rely on the lower end, also of a falling line.
        ends.append(first - below)
        if first >= mean:
            first, (below, above) = mean, _wilson(mean, shares_S)
        rates.append(first)
        ends += [first - below, first + above]
    return NoiseRate.bounded(rates[0], min(ends), max(ends))


def _at_rank_zero(growth_S: Tensor, shares_S: Tensor) -> Tensor:
    mean_growth = float(shares_S @ growth_S)
    centred_S = growth_S - mean_growth
    spread = float(shares_S @ centred_S.square())
    # One example, or all of one rank: the line is the mean.
    return shares_S * (1 - mean_growth * centred_S / spread) if spread > 0 else shares_S


def _wilson(share: float, factors_S: Tensor) -> tuple[float, float]:
    added = _DEVIATIONS**2 * float(factors_S.square().sum())
    centre = (share + added / 2) / (1 + added)
    variance = added * (share * (1 - share) + added / 4)
    half = math.sqrt(variance) / (1 + added)
    return share - centre + half, centre + half - share
