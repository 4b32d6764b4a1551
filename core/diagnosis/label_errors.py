"""Label errors: examples whose given label a head that never saw them contradicts.

t_c, the threshold of class c, is the mean chance of c over the examples labelled c. An
example is suspect where the likeliest class o is not its label, and has at least the chance
t_o: as sure as the head is of what is labelled o. The joint counts of given labels and such
sure classes say which classes are taken for which.

All suspects are ranked by the quality of their labels, p_y / (p_y + sqrt(p_o)) with p_o the
largest chance of another class: half-way, in logarithms, between the label's own chance
(better under symmetric noise) and its ratio to the other (better under asymmetric noise). On
50,000 images of cifar10-jpeg its AUC is .926 where 36% of the labels are wrong (.924 and .923
for those two) and .795 under asymmetric noise (.786 and .799).

On hard but clean data a good seventh of all examples is suspect: they are atypical, and not
wrong. How many labels are wrong is estimated apart (noise_rates), and `sure_suspects` are as
few as that estimate's lower end allows.

Shapes: N examples, B of a block, C classes.
Source: Northcutt et al. 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels"
(arXiv:1911.00068), on leave-one-out chances in place of cross-validated ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.common.signals.blocks import row_blocks
from lipt.common.targets.kinds import TargetKind
from lipt.core.diagnosis.noise_rates import NoiseRates, noise_rates
from lipt.core.signals.signals import Signals, probabilities_of

# Below any chance that decides something; keeps quality defined where float32 underflows.
_TINY = 1e-30
# Of the wrong labels that there are at least: the worse half of the suspects is mostly right.
SURE_SHARE = 0.5


@dataclass(frozen=True)
class LabelErrors:
    """What is to be said of each label, and of all.

    quality_N: float32 in [0, 1], higher is better; the order is what counts.
    suggested_N: int64, the class that the head takes each example for.
    suspects_N: bool.
    thresholds_C: float64, t_c; infinite for a class without examples.
    joint_CC: int64, how many are labelled c (rows) and surely taken for o (columns).
    noise: how many labels are wrong.
    """

    quality_N: Tensor
    suggested_N: Tensor
    suspects_N: Tensor
    thresholds_C: Tensor
    joint_CC: Tensor
    noise: NoiseRates

    def ranked(self) -> Tensor:
        """The suspects' ids, the worst label first; ties keep the data set's order."""
        ids_S = torch.nonzero(self.suspects_N).flatten()
        return ids_S[self.quality_N[ids_S].argsort(stable=True)]


def find_label_errors(signals: Signals) -> LabelErrors:
    """Find the labels that look wrong.

    Where there was a second look, its head says which classes labels are taken for, both
    together how good each label is, and the first alone how many are wrong: the second has
    not learned from the labels that it would have to count.

    Args:
        signals: with errors of a head that did not learn from the example it judges.

    Raises:
        SignalsError: they have no errors, not one example, or targets that are no classes.
    """
    if signals.kind is not TargetKind.CLASS:
        raise SignalsError(
            f"label errors cannot be looked for in {signals.kind.words} data: which label an "
            "example should have is told by classes. Look at the largest residuals instead."
        )
    first = _find(signals.errors_NC, signals.labels_N)
    if signals.second_errors_NC is None:
        return first
    second = _find(signals.second_errors_NC, signals.labels_N)
    quality_N = (first.quality_N * second.quality_N).sqrt()
    return replace(second, quality_N=quality_N, noise=first.noise)


def _find(errors_NC: Tensor, labels_N: Tensor) -> LabelErrors:
    num_examples, num_classes = errors_NC.shape
    if not num_examples or not num_classes:
        raise SignalsError(
            f"label errors cannot be looked for: the signals have errors of {num_examples} "
            f"examples in {num_classes} classes. Compute them with a head first."
        )
    counts_C = labels_N.bincount(minlength=num_classes)
    own_N, other_N, best_N = (torch.empty(num_examples, device=labels_N.device) for _ in range(3))
    suggested_N = torch.empty_like(labels_N)
    for rows in row_blocks(num_examples, 16 * num_classes):
        labels_B = labels_N[rows]
        chances_BC = probabilities_of(errors_NC[rows], labels_B)
        # Nobody can be mistaken for what is not there.
        chances_BC.masked_fill_(counts_C == 0, 0.0)
        best_N[rows], suggested_N[rows] = chances_BC.max(dim=-1)
        own_N[rows] = chances_BC.gather(1, labels_B[:, None]).squeeze(1)
        other_N[rows] = chances_BC.scatter_(1, labels_B[:, None], 0.0).amax(dim=-1)
    thresholds_C = torch.zeros(num_classes, dtype=torch.float64, device=labels_N.device)
    thresholds_C.index_add_(0, labels_N, own_N.double()).div_(counts_C)
    thresholds_C.masked_fill_(counts_C == 0, torch.inf)
    sure_N = best_N >= thresholds_C[suggested_N]
    pairs_N = labels_N * num_classes + suggested_N
    joint_CC = pairs_N[sure_N].bincount(minlength=num_classes**2)
    return LabelErrors(
        quality_N=_quality(own_N, other_N),
        suggested_N=suggested_N,
        suspects_N=sure_N & (suggested_N != labels_N),
        thresholds_C=thresholds_C,
        joint_CC=joint_CC.view(num_classes, num_classes),
        noise=noise_rates(labels_N, suggested_N, best_N, num_classes),
    )


def sure_suspects(found: LabelErrors, *, share: float = SURE_SHARE) -> Tensor:
    """The ids of the suspects that may be left out safely, the worst label first.

    As many as a share of the wrong labels that there are at least: where it cannot be told
    from the figures that any is wrong, none is sure.
    """
    at_least = found.noise.overall.low * len(found.quality_N)
    return found.ranked()[: int(share * at_least)]


def _quality(own_N: Tensor, other_N: Tensor) -> Tensor:
    own_64 = own_N.double().clamp(min=_TINY)
    return (own_64 / (own_64 + other_N.double().clamp(min=0).sqrt())).float()
