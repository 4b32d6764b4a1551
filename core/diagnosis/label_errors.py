"""Label errors: examples whose label a held-out head contradicts.

The threshold t_c of class c is the mean probability of c over the examples labelled c. An example
is suspect if the likeliest class o is not its label, and has at least the probability t_o. Suspects
are ranked by label quality, p_y / (p_y + sqrt(p_o)), with p_o the largest probability of another
class: between p_y (better under symmetric noise) and p_y / p_o (better under asymmetric).

Many suspects of hard data are atypical, and not wrong. So `noise_rates` uses the surest fifth of
each predicted class, where most disagreement is noise. The head's own error grows with the rank,
from zero at the surest: a line fitted to disagreement over the root of the rank, read at rank 0,
removes it. A line over the rank itself ends higher: the interval reaches from the lower end of one
to the upper end of the other. The estimate fails for a class that is mostly relabelled to one
other. A second head excludes the lowest-quality labels of each class (`label_confidence`).

Shapes: N examples, B of a block, S of them the surest, C classes or strata.
Source: Northcutt et al. 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels"
(arXiv:1911.00068), on leave-one-out probabilities in place of cross-validated ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipt.common.signals import row_blocks
from lipt.core.signals.signals import Signals, probabilities_of

# Keeps quality defined if float32 underflows.
_TINY = 1e-30
# Share of a predicted class that is surest, and its minimum number of examples.
_SUREST, _FEWEST = 0.2, 20
# Standard deviations of the normal distribution's 95% interval.
_DEVIATIONS = 1.96
# From this share of wrong labels on, a second head is worth its cost.
SURE_NOISE = 0.02
# From this many examples of a class per feature on, random wrong labels hardly move the first head.
# On three tables of 100,000 rows, with 24% wrong, both heads find these less well than the first
# alone: AUC 0.81 and 0.83, 0.74 and 0.76, 0.99 and 1.00. Where classes are confused they gain on
# one (0.87 and 0.82) and lose on two.
_MANY_PER_FEATURE = 25
# Maximum share of a class that the second head excludes.
_MOST = 0.5
# The equations need a positive weight; this one has no effect.
_SUSPECTED_CONFIDENCE = 1e-6


@dataclass(frozen=True)
class NoiseRate:
    """A share of labels, and the ends of its 95% interval; all in [0, 1]."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class NoiseRates:
    """Shares of wrong labels, of all and of each given class; 0 for a class without examples."""

    overall: NoiseRate
    per_class: tuple[NoiseRate, ...]


@dataclass(frozen=True)
class LabelErrors:
    """Findings about each label, and about all.

    quality_N: float32 in [0, 1], higher is better; only the order is meaningful.
    suggested_N: int64, the class that the head predicts. suspects_N: bool.
    joint_CC: int64, how many are labelled c (rows) and surely predicted as o (columns).
    """

    quality_N: Tensor
    suggested_N: Tensor
    suspects_N: Tensor
    joint_CC: Tensor
    noise: NoiseRates

    def ranked(self) -> Tensor:
        """The suspects' ids, the worst label first; ties keep the data set's order."""
        ids_S = torch.nonzero(self.suspects_N).flatten()
        return ids_S[self.quality_N[ids_S].argsort(stable=True)]


def find_label_errors(signals: Signals) -> LabelErrors:
    """Find the labels that look wrong among classes.

    A second head suggests the classes, both give the quality, and the first alone the noise.
    """
    first = _find(signals.errors_NC, signals.labels_N)
    if signals.second_errors_NC is None:
        return first
    second = _find(signals.second_errors_NC, signals.labels_N)
    quality_N = (first.quality_N * second.quality_N).sqrt()
    return replace(second, quality_N=quality_N, noise=first.noise)


def _find(errors_NC: Tensor, labels_N: Tensor) -> LabelErrors:
    num_examples, num_classes = errors_NC.shape
    counts_C = labels_N.bincount(minlength=num_classes)
    own_N, other_N, best_N = (torch.empty(num_examples, device=labels_N.device) for _ in range(3))
    suggested_N = torch.empty_like(labels_N)
    for rows in row_blocks(num_examples, 16 * num_classes):
        labels_B = labels_N[rows]
        probabilities_BC = probabilities_of(errors_NC[rows], labels_B)
        # Absent classes are never predicted.
        probabilities_BC.masked_fill_(counts_C == 0, 0.0)
        best_N[rows], suggested_N[rows] = probabilities_BC.max(dim=-1)
        own_N[rows] = probabilities_BC.gather(1, labels_B[:, None]).squeeze(1)
        other_N[rows] = probabilities_BC.scatter_(1, labels_B[:, None], 0.0).amax(dim=-1)
    thresholds_C = torch.zeros(num_classes, dtype=torch.float64, device=labels_N.device)
    thresholds_C.index_add_(0, labels_N, own_N.double()).div_(counts_C)
    thresholds_C.masked_fill_(counts_C == 0, torch.inf)
    sure_N = best_N >= thresholds_C[suggested_N]
    pairs_N = labels_N * num_classes + suggested_N
    joint_CC = pairs_N[sure_N].bincount(minlength=num_classes**2)
    own_64 = own_N.double().clamp(min=_TINY)
    return LabelErrors(
        quality_N=(own_64 / (own_64 + other_N.double().clamp(min=0).sqrt())).float(),
        suggested_N=suggested_N,
        suspects_N=sure_N & (suggested_N != labels_N),
        joint_CC=joint_CC.view(num_classes, num_classes),
        noise=noise_rates(labels_N, suggested_N, best_N, num_classes),
    )


def noise_rates(
    labels_N: Tensor, suggested_N: Tensor, sureness_N: Tensor, num_classes: int
) -> NoiseRates:
    """Estimate how many labels are wrong from the examples that the head is surest of."""
    ids_S, ranks_S, weights_S = _most_confident(suggested_N, sureness_N, num_classes)
    given_S = labels_N[ids_S]
    wrong_S = (given_S != suggested_N[ids_S]).double()
    overall = _rate(ranks_S, weights_S, wrong_S)
    per_class = []
    for label, count in enumerate(labels_N.bincount(minlength=num_classes).tolist()):
        own_S = given_S == label
        if not count:
            per_class.append(NoiseRate(0.0, 0.0, 0.0))
        elif not bool(own_S.any()):
            # None of its examples is among the surest: the rate is unknown.
            per_class.append(NoiseRate(overall.rate, 0.0, 1.0))
        else:
            per_class.append(_rate(ranks_S[own_S], weights_S[own_S], wrong_S[own_S]))
    return NoiseRates(overall, tuple(per_class))


def _most_confident(
    suggested_N: Tensor, sureness_N: Tensor, num_classes: int
) -> tuple[Tensor, Tensor, Tensor]:
    by_sureness_N = sureness_N.argsort(descending=True, stable=True)
    order_N = by_sureness_N[suggested_N[by_sureness_N].argsort(stable=True)]
    parts, ranks, weights, start = [], [], [], 0
    for count in suggested_N.bincount(minlength=num_classes).tolist():
        kept = min(count, max(_FEWEST, round(_SUREST * count)))
        parts.append(order_N[start : start + kept])
        ranks.append((torch.arange(kept, dtype=torch.float64) + 0.5) / max(1, kept))
        weights.append(torch.full((kept,), count / max(1, kept), dtype=torch.float64))
        start += count
    device = suggested_N.device
    return torch.cat(parts), torch.cat(ranks).to(device), torch.cat(weights).to(device)


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
    return NoiseRate(max(0.0, rates[0]), max(0.0, min(ends)), min(1.0, max(0.0, *ends)))


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


def fit_of_targets(signals: Signals, num_strata: int) -> LabelErrors:
    """The quality 1 / (1 + |residual|) of labels or numbers; none is suspect."""
    labels_N, nothing = signals.labels_N, NoiseRate(0.0, 0.0, 0.0)
    norms_N = torch.linalg.vector_norm(signals.errors_NC, dim=-1, dtype=torch.float64)
    return LabelErrors(
        quality_N=(1 / (1 + norms_N)).float(),
        suggested_N=labels_N,
        suspects_N=torch.zeros_like(labels_N, dtype=torch.bool),
        joint_CC=torch.zeros(num_strata, num_strata, dtype=torch.int64),
        noise=NoiseRates(nothing, (nothing,) * num_strata),
    )


def label_confidence(found: LabelErrors, labels_N: Tensor) -> Tensor | None:
    """Weights of labels in a later fit, float64 in (0, 1]; None if none is surely wrong."""
    if found.noise.overall.low < SURE_NOISE:
        return None
    share = min(_MOST, found.noise.overall.rate)
    confidence_N = torch.ones_like(labels_N, dtype=torch.float64)
    for label in range(len(found.joint_CC)):
        rows = torch.nonzero(labels_N == label).flatten()
        least = found.quality_N[rows].argsort(stable=True)[: round(share * len(rows))]
        confidence_N[rows[least]] = _SUSPECTED_CONFIDENCE
    return confidence_N


def second_head_helps(labels_N: Tensor, num_features: int) -> bool:
    """Whether wrong labels move a head on so many features."""
    per_class = len(labels_N) / int((labels_N.bincount() > 0).sum())
    return per_class < _MANY_PER_FEATURE * num_features
