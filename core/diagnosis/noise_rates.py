"""Noise rates: how many of the given labels are wrong, in all and per class.

Counting suspects overstates it where classes are hard: on clean cifar10-jpeg, of which the
patches' head gets 65% right, confident learning calls 23% of the labels wrong. Here only the
surest fifth of what the head takes for each class is looked at, where it is seldom wrong
itself, so that what disagrees is mostly noise. What is left of its own error grows with the
rank, from nothing at the surest: a line through disagreement over the root of the rank, read
at rank 0, takes it out (it grows fast at first). Over the rank itself the line ends higher:
the interval reaches from the lower end of one to the upper end of the other. Where
disagreement does not grow with the rank, its mean says as much with less doubt.

The surest of each class count for all that the head takes for that class, so that a class
whose labels are all right does not stand for one whose labels are not. Where the head is
fooled as a whole (most of a class relabelled to one other), nothing here can know.

Shapes: N examples, S of them the surest, C classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Of what is taken for a class; and not fewer, as far as there are as many.
_SUREST = 0.2
_FEWEST = 20
# Of the normal distribution: 95% lie within.
_DEVIATIONS = 1.96


@dataclass(frozen=True)
class NoiseRate:
    """A share of labels, and the ends of its 95% interval; all in [0, 1]."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class NoiseRates:
    """Of all labels, and of those that say each class; a class without examples has none."""

    overall: NoiseRate
    per_class: tuple[NoiseRate, ...]


@dataclass(frozen=True)
class _Surest:
    """The surest of each class, by what the head takes them for.

    ranks_S: 0 to 1 within the class, float64.
    weights_S: how many examples each stands for, float64.
    wrong_S: 1 where the given label is another than the head's, float64.
    """

    ids_S: Tensor
    ranks_S: Tensor
    weights_S: Tensor
    wrong_S: Tensor

    def take(self, chosen_S: Tensor) -> _Surest:
        return _Surest(
            self.ids_S[chosen_S],
            self.ranks_S[chosen_S],
            self.weights_S[chosen_S],
            self.wrong_S[chosen_S],
        )


def noise_rates(
    labels_N: Tensor, suggested_N: Tensor, sureness_N: Tensor, num_classes: int
) -> NoiseRates:
    """Estimate how many labels are wrong from the examples that the head is surest of.

    Args:
        labels_N: int64, the given ones.
        suggested_N: int64, what a head says that has not seen the example.
        sureness_N: how sure it is, in any unit.
        num_classes: C.
    """
    surest = _surest(labels_N, suggested_N, sureness_N, num_classes)
    overall = _rate(surest)
    given_S = labels_N[surest.ids_S]
    counts_C = labels_N.bincount(minlength=num_classes).tolist()
    per_class = []
    for label, count in enumerate(counts_C):
        own = surest.take(given_S == label)
        if not count:
            per_class.append(NoiseRate(0.0, 0.0, 0.0))
        elif not len(own.ids_S):
            # None of them is among the surest: it may be anything.
            per_class.append(NoiseRate(overall.rate, 0.0, 1.0))
        else:
            per_class.append(_rate(own))
    return NoiseRates(overall, tuple(per_class))


def _surest(labels_N: Tensor, suggested_N: Tensor, sureness_N: Tensor, num_classes: int) -> _Surest:
    by_sureness_N = sureness_N.argsort(descending=True, stable=True)
    order_N = by_sureness_N[suggested_N[by_sureness_N].argsort(stable=True)]
    parts = []
    ranks, weights = [], []
    start = 0
    for count in suggested_N.bincount(minlength=num_classes).tolist():
        kept = min(count, max(_FEWEST, round(_SUREST * count)))
        parts.append(order_N[start : start + kept])
        ranks.append((torch.arange(kept, dtype=torch.float64) + 0.5) / max(1, kept))
        weights.append(torch.full((kept,), count / max(1, kept), dtype=torch.float64))
        start += count
    ids_S = torch.cat(parts)
    wrong_S = (labels_N[ids_S] != suggested_N[ids_S]).double()
    device = labels_N.device
    return _Surest(ids_S, torch.cat(ranks).to(device), torch.cat(weights).to(device), wrong_S)


def _rate(surest: _Surest) -> NoiseRate:
    """The share that is wrong at rank 0, and its interval."""
    shares_S = surest.weights_S / surest.weights_S.sum()
    mean = float(shares_S @ surest.wrong_S)
    ends = []
    rates = []
    for growth_S in (surest.ranks_S.sqrt(), surest.ranks_S):
        factors_S = _at_rank_zero(growth_S, shares_S)
        first = float(factors_S @ surest.wrong_S)
        below, above = _wilson(mean, factors_S)
        # The lower end is what is relied on: also of a line that falls.
        ends.append(first - below)
        if first >= mean:
            first, (below, above) = mean, _wilson(mean, shares_S)
        rates.append(first)
        ends += [first - below, first + above]
    return NoiseRate(max(0.0, rates[0]), max(0.0, min(ends)), min(1.0, max(0.0, *ends)))


def _at_rank_zero(growth_S: Tensor, shares_S: Tensor) -> Tensor:
    """What each example adds to the least-squares line's value where growth is 0."""
    mean_growth = float(shares_S @ growth_S)
    centred_S = growth_S - mean_growth
    spread = float(shares_S @ centred_S.square())
    # One example, or all of one rank: there is no line but the mean.
    return shares_S * (1 - mean_growth * centred_S / spread) if spread > 0 else shares_S


def _wilson(share: float, factors_S: Tensor) -> tuple[float, float]:
    """How far the ends of Wilson's interval of a share are below and above it.

    Of as many examples of equal weight as leave the same doubt: where little was looked at it
    is wide even if nothing was seen.
    """
    added = _DEVIATIONS**2 * float(factors_S.square().sum())
    centre = (share + added / 2) / (1 + added)
    variance = added * (share * (1 - share) + added / 4)
    half = math.sqrt(variance) / (1 + added)
    return share - centre + half, centre + half - share
