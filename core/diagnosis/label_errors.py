"""Label errors: examples whose label a held-out head contradicts.

The threshold t_c of class c is the mean probability of c over the examples labelled c. An example
is suspect if the likeliest class o is not its label, and has at least the probability t_o. Suspects
are ranked by label quality, p_y / (p_y + sqrt(p_o)), with p_o the largest probability of another
class: between p_y (better under symmetric noise) and p_y / p_o (better under asymmetric).

Of a class with few examples the mean says little, and it is lowest where all are typing errors. So
examples that it lacks count as certain ones.

Many suspects of hard data are atypical, and not wrong: `noise_rates` says how many labels are. A
second head excludes the lowest-quality labels of each class (`label_confidence`).

Shapes: N examples, B of a block, C classes or strata.
Source: Northcutt et al. 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels"
(arXiv:1911.00068), on leave-one-out probabilities in place of cross-validated ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipt.core.diagnosis.noise import NoiseRate, NoiseRates, noise_rates
from lipt.core.passes import row_blocks
from lipt.core.proxies.ridge import FULL_CLASS, fullness
from lipt.core.signals.signals import probabilities_of
from lipt.core.signals.views import LastLayer
from lipt.data.groups import ranks_in_groups

# Keeps quality defined if float32 underflows.
_TINY = 1e-30
# From this lower end of the share of wrong labels on, they count: a second head is worth its cost.
# Without any, 2 of 96 heads of docs/diagnosis.md give as much, and 5 of 192 with 2% wrong.
SURE_NOISE = 0.015
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
class LabelQuality:
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


def find_label_errors(layer: LastLayer) -> LabelQuality:
    """Find the labels that look wrong among classes.

    A second head suggests the classes, both give the quality, and the first alone the noise.
    """
    first = _find(layer.errors_NC, layer.labels_N, None)
    if layer.second_errors_NC is None:
        return first
    second = _find(layer.second_errors_NC, layer.labels_N, first.noise)
    return replace(second, quality_N=(first.quality_N * second.quality_N).sqrt())


def _find(errors_NC: Tensor, labels_N: Tensor, noise: NoiseRates | None) -> LabelQuality:
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
    thresholds_C.index_add_(0, labels_N, own_N.double())
    missing_C = (FULL_CLASS - counts_C).clamp(min=0)
    thresholds_C = (thresholds_C + missing_C) / (counts_C + missing_C)
    sure_N = best_N >= thresholds_C[suggested_N]
    pairs_N = labels_N * num_classes + suggested_N
    joint_CC = pairs_N[sure_N].bincount(minlength=num_classes**2)
    own_64 = own_N.double().clamp(min=_TINY)
    return LabelQuality(
        quality_N=(own_64 / (own_64 + other_N.double().clamp(min=0).sqrt())).float(),
        suggested_N=suggested_N,
        suspects_N=sure_N & (suggested_N != labels_N),
        joint_CC=joint_CC.view(num_classes, num_classes),
        noise=noise or noise_rates(errors_NC, labels_N, suggested_N, best_N),
    )


def fit_of_targets(layer: LastLayer, num_strata: int) -> LabelQuality:
    """The quality 1 / (1 + |residual|) of labels or numbers; none is suspect."""
    norms_N = torch.linalg.vector_norm(layer.errors_NC, dim=-1, dtype=torch.float64)
    return without_suspects((1 / (1 + norms_N)).float(), layer.labels_N, num_strata)


def without_suspects(quality_N: Tensor, strata_N: Tensor, num_strata: int) -> LabelQuality:
    """Only the order of targets that are no classes: how many are wrong is not estimated."""
    nothing = NoiseRate(0.0, 0.0, 0.0)
    return LabelQuality(
        quality_N=quality_N,
        suggested_N=strata_N,
        suspects_N=torch.zeros_like(strata_N, dtype=torch.bool),
        joint_CC=torch.zeros(num_strata, num_strata, dtype=torch.int64),
        noise=NoiseRates(nothing, (nothing,) * num_strata),
    )


def label_confidence(quality: LabelQuality, labels_N: Tensor) -> Tensor | None:
    """Weights of labels in a later fit, float64 in (0, 1]; None if none is surely wrong."""
    if quality.noise.overall.low < SURE_NOISE:
        return None
    share = min(_MOST, quality.noise.overall.rate)
    counts_C = labels_N.bincount(minlength=len(quality.joint_CC))
    order_N, ranks_N = quality.quality_N.argsort(stable=True), torch.empty_like(labels_N)
    ranks_N[order_N] = ranks_in_groups(labels_N[order_N])
    is_doubtful_N = ranks_N < (share * counts_C.double()).round()[labels_N]
    confidence_N = torch.ones_like(labels_N, dtype=torch.float64)
    return confidence_N.masked_fill_(is_doubtful_N, _SUSPECTED_CONFIDENCE)


def second_head_helps(labels_N: Tensor, num_features: int) -> bool:
    """Whether wrong labels move a head on so many features."""
    per_class = len(labels_N) / float(fullness(labels_N.bincount()).sum())
    return per_class < _MANY_PER_FEATURE * num_features
