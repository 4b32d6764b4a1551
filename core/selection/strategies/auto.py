"""Auto: look at the data first, and choose by what was found there.

Leave-one-out outputs of a ridge head say which labels are trusted, and how many are wrong. Classes
get equal shares unless told otherwise. What to do depends on how many are kept.

The fewer are kept, the more typical they should be: of each class the examples whose labels a
head trusts least are left out, a multiple of the share that the head gets wrong there. The
multiple falls with the fraction kept, and sooner where main training goes on to the end: then
what is atypical is learned, too, and is worth as much as what is typical. Wrong labels and near
copies are left out at any fraction, where it is sure that there are some, and so is what a
head gets wrong that is seldom wrong. Where no gain over class-balanced random was measured, the
plan is class-balanced random. The figures behind every number here are in docs/value.md and
docs/results.md.

All this was measured on classes. For labels or numbers no gain over random is known: every stratum
(quantile of the numbers, or rarest label) has its share, and of near copies one is enough.

Shapes: N examples, n of one class, C classes, K budget.
Source: the head's outputs are read as in Northcutt et al. 2021 (arXiv:1911.00068), the rest is
represented by facility location (Wei et al. 2015, ICML).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from lipt.common.determinism import derive_seed
from lipt.common.targets.kinds import TargetKind
from lipt.core.diagnosis.label_errors import LabelErrors, find_label_errors
from lipt.core.selection.quotas import (
    class_quotas,
    proportional_quotas,
    worth_counting,
)
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategies.facility_location import facility_location
from lipt.core.selection.strategies.uniform import uniform
from lipt.core.selection.strategy import SIGNALS, Need, Strategy
from lipt.core.signals.signals import Signals, given

# How long main training is: to the end, or stopped early, as in a search of hyper-parameters.
Training = Literal["converged", "short"]

# Up to the first share kept, half as many again as the head gets wrong are left out; from the
# second on, none.
_FROM_FEW_TO_MANY: dict[Training, tuple[float, float]] = {
    "converged": (0.01, 0.1),
    "short": (0.05, 0.2),
}
_STRICTEST = 1.5
# Facility location looks for what is odd: so much of what the head gets wrong is kept from it.
_MILDEST = 0.4
# Up to that share what is left is represented, and not drawn at random.
_REPRESENTED = 0.2
# A class keeps enough to choose from, however little of it is trusted.
_MOST = 0.7
# For each wrong label: the least trusted are not all wrong.
_PER_WRONG_LABEL = 1.5
# From that share of wrong labels on, what is left out is worth the right ones among it.
_NOISY = 0.02
# A head that is as seldom wrong as that, in all and in the class, is right where it contradicts a
# label. Of a class that it is wrong about more often it may have seen too little.
_SELDOM_WRONG = 0.1
# From that share of near copies on, they are left out: fewer do little harm, and small images that
# only look alike (8% of handwritten digits) are worth keeping.
REDUNDANT = 0.2
# Of what is between guessing and knowing: below it the head's word on an example is noise.
_SKILL = 0.2
# A manifest is to stay a page that one can read; a diagnosis has all of them.
_MAX_NAMED = 1000


def auto(
    signals: Signals,
    budget: int,
    *,
    training: Annotated[
        Training, "main training to the end, or stopped early as in a search of hyper-parameters"
    ] = "converged",
    balanced: bool,
    seed: int,
) -> Selection:
    """Keep what is worth keeping by what is found in the data; the findings say what that is.

    Args:
        signals: of a head that did not learn from the example it judges.
        budget: K.
        training: what the subset is for.
        balanced: equal shares for the classes, as far as they reach, or those that they have.
        seed: of what is drawn.

    Raises:
        SignalsError: there are no errors to judge labels by.
    """
    if signals.kind is not TargetKind.CLASS:
        return auto_strata(signals, budget, balanced=balanced, seed=seed)
    labels_N = signals.labels_N
    found = find_label_errors(signals)
    copies_N = surplus_copies(found, given(signals.pictures_N, "near copies"))
    evidence = gather(found, labels_N, copies_N, budget, training)
    plan = make_plan(evidence)
    if not plan.leaves_out_copies:
        copies_N = torch.zeros_like(copies_N)
    parts, left_out = [], []
    for label, quota in enumerate(_quotas(labels_N, copies_N, plan, budget, balanced=balanced)):
        rows, num_own = _by_trust(torch.nonzero(labels_N == label).flatten(), found, copies_N)
        num_candidates = max(quota, round((1 - plan.left_out_C[label]) * num_own))
        left_out.append(rows[num_candidates:])
        if quota:
            candidates = rows[:num_candidates].sort().values
            # As for strategies that see one class at a time: plain random is that of them.
            class_seed = derive_seed(seed, "selection-class", label)
            parts.append(_choose(signals, candidates, quota, plan, class_seed))
    findings = _findings(evidence, plan, found, torch.cat(left_out))
    return replace(unweighted(torch.cat(parts)), findings=findings)


def surplus_copies(found: LabelErrors, pictures_N: Tensor) -> Tensor:
    """Which examples are near copies of one whose label is trusted more; N bool."""
    order_N = found.quality_N.argsort(descending=True, stable=True)
    copies_N = torch.empty_like(found.suspects_N)
    copies_N[order_N] = surplus_pictures(pictures_N[order_N])
    return copies_N


def gather(
    found: LabelErrors, labels_N: Tensor, copies_N: Tensor, budget: int, training: Training
) -> Evidence:
    """What the plan is made of."""
    counts_C = labels_N.bincount(minlength=len(found.thresholds_C))
    wrong_C = labels_N[found.suggested_N != labels_N].bincount(minlength=len(counts_C))
    return Evidence(
        fraction=budget / len(labels_N),
        errors_C=tuple((wrong_C / counts_C.clamp(min=1)).tolist()),
        num_classes=int((counts_C > 0).sum()),
        noise_rate=found.noise.overall.rate,
        noise_low=found.noise.overall.low,
        noise_C=tuple(rate.rate for rate in found.noise.per_class),
        copies=float(copies_N.double().mean()),
        training=training,
    )


def _quotas(
    labels_N: Tensor, copies_N: Tensor, plan: Plan, budget: int, *, balanced: bool
) -> tuple[int, ...]:
    """Shares of the classes, of which copies and wrong labels are no part as far as may be."""
    num_classes = len(plan.wrong_C)
    counts_C = labels_N.bincount(minlength=num_classes).tolist()
    own_C = labels_N[~copies_N].bincount(minlength=num_classes).tolist()
    own_C = own_C if sum(own_C) >= budget else counts_C
    share = class_quotas if balanced else proportional_quotas
    return share(worth_counting(own_C, plan.wrong_C, budget), budget)


def _by_trust(rows: Tensor, found: LabelErrors, copies_N: Tensor) -> tuple[Tensor, int]:
    """A class's rows, the most trusted labels first and copies last, and how many are none."""
    # Of equally trusted ones the first.
    order = found.quality_N[rows].argsort(descending=True, stable=True)
    order = order[copies_N[rows[order]].int().argsort(stable=True)]
    return rows[order], int((~copies_N[rows]).sum())


def _choose(signals: Signals, candidates: Tensor, quota: int, plan: Plan, seed: int) -> Tensor:
    taken = signals.take(candidates)
    if plan.method == "random":
        chosen = uniform(taken, quota, seed=seed)
    else:
        chosen = facility_location(taken, quota, seed=seed, space="features")
    return candidates[chosen.indices_K.to(candidates.device)]


def _findings(
    evidence: Evidence, plan: Plan, found: LabelErrors, left_out: Tensor
) -> dict[str, Any]:
    """What was found, decided and left out, as JSON."""
    noise = found.noise.overall
    least_trusted = left_out[found.quality_N[left_out].argsort(stable=True)]
    interval = f"95% interval {noise.low:.1%} to {noise.high:.1%}"
    known = f"right on {evidence.accuracy:.1%} of the labels that it has not seen"
    words = [
        f"{noise.rate:.1%} of the labels look wrong ({interval})",
        f"a head on the proxy's features is {known}",
        f"{evidence.copies:.1%} of the examples are near copies of others",
        plan.why,
    ]
    return {
        "words": words,
        "method": plan.method,
        "noise": {"low": noise.low, "rate": noise.rate, "high": noise.high},
        "accuracy": evidence.accuracy,
        "copies": evidence.copies,
        "left_out": {
            "count": len(left_out),
            "share_per_class": [round(share, 4) for share in plan.left_out_C],
            "least_trusted_ids": least_trusted[:_MAX_NAMED].tolist(),
        },
    }


@dataclass(frozen=True)
class Evidence:
    """What is known when the plan is made.

    fraction: share of the examples to keep.
    errors_C: share of each class that the head gets wrong, on labels that it has not seen; 0
        for a class without examples.
    num_classes: how many have examples.
    noise_rate: of all labels, how many are wrong, most likely; noise_low: at least.
    noise_C: of each class, how many are wrong, most likely.
    copies: share of the examples that are near copies of others.
    training: what the subset is for.
    """

    fraction: float
    errors_C: tuple[float, ...]
    num_classes: int
    noise_rate: float
    noise_low: float
    noise_C: tuple[float, ...]
    copies: float = 0.0
    training: Training = "converged"

    @property
    def accuracy(self) -> float:
        """Of the head on labels that it has not seen, the mean over classes."""
        return 1.0 - sum(self.errors_C) / self.num_classes

    @property
    def seldom_wrong(self) -> bool:
        """Whether the head can be believed where it contradicts a label."""
        return 1.0 - self.accuracy <= _SELDOM_WRONG

    @property
    def skill(self) -> float:
        """0 for guessing, 1 for always right, of what wrong labels leave to be right about."""
        if self.num_classes < 2:
            return 0.0
        guessing = 1.0 / self.num_classes
        # A head that knows nothing disagrees with most labels, and that looks like noise.
        possible = max(1.0 - self.noise_rate, (1.0 + guessing) / 2)
        return (self.accuracy - guessing) / (possible - guessing)


@dataclass(frozen=True)
class Plan:
    """What is left out, and how the rest is drawn from.

    left_out_C: share of each class that is left out, its least trusted labels.
    wrong_C: share of each class that is left out as wrong: no part of the class's quota.
    method: facility location on the features, or random.
    why: in a sentence.
    leaves_out_copies: whether one of each picture is enough.
    """

    left_out_C: tuple[float, ...]
    wrong_C: tuple[float, ...]
    method: Literal["facility_location", "random"]
    why: str
    leaves_out_copies: bool = False


def make_plan(evidence: Evidence) -> Plan:
    """What to leave out, and how to choose among the rest."""
    if evidence.copies < REDUNDANT:
        return _by_labels(evidence)
    # Of what is left without copies.
    fraction = min(1.0, evidence.fraction / (1.0 - evidence.copies))
    plan = _by_labels(replace(evidence, fraction=fraction))
    why = f"{plan.why}; one of each picture, as {evidence.copies:.1%} are near copies of others"
    return replace(plan, leaves_out_copies=True, why=why)


def _by_labels(evidence: Evidence) -> Plan:
    nothing = (0.0,) * len(evidence.errors_C)
    if evidence.skill < _SKILL:
        return Plan(
            nothing,
            nothing,
            "random",
            f"a head on the proxy's features is right on {evidence.accuracy:.1%} of the labels "
            "that it has not seen, too few to go by: class-balanced random",
        )
    wrong_C = tuple(
        min(_MOST, error, wrong)
        for error, wrong in zip(evidence.errors_C, _wrong_for_sure(evidence), strict=True)
    )
    left_out_C = tuple(
        min(_MOST, max(_strictness(evidence, error) * error, wrong))
        for error, wrong in zip(evidence.errors_C, wrong_C, strict=True)
    )
    kept = f"{100 * evidence.fraction:.2g}% of the examples"
    least = f"without the {_mean(evidence, left_out_C):.0%} whose labels are trusted least"
    chosen = _gains(evidence) or evidence.seldom_wrong or any(left_out_C)
    few = evidence.fraction < _REPRESENTED and chosen
    if few:
        why = f"to keep {kept}: of each class those that represent it, {least}"
        return Plan(left_out_C, wrong_C, "facility_location", why)
    if any(left_out_C):
        why = f"to keep {kept}: class-balanced random, {least}"
        return Plan(left_out_C, wrong_C, "random", why)
    why = (
        f"no gain is known of choosing {kept} where labels are right and main training is "
        f"{evidence.training}: class-balanced random"
    )
    return Plan(nothing, nothing, "random", why)


def _wrong_for_sure(evidence: Evidence) -> tuple[float, ...]:
    """Of each class, the share that wrong labels ask for, where it is sure that there are some."""
    if evidence.noise_low < _NOISY:
        return (0.0,) * len(evidence.noise_C)
    # Of one class the estimate is rough: it has its share of all wrong labels at least.
    return tuple(_PER_WRONG_LABEL * max(rate, evidence.noise_rate) for rate in evidence.noise_C)


def _gains(evidence: Evidence) -> bool:
    """Whether choosing gains so few as are kept: from many on what is atypical is worth as much."""
    return evidence.fraction < _FROM_FEW_TO_MANY[evidence.training][1]


def _strictness(evidence: Evidence, error: float) -> float:
    """How many of a class are left out for each of it that the head gets wrong."""
    few, many = _FROM_FEW_TO_MANY[evidence.training]
    strictness = _STRICTEST * min(1.0, (many - evidence.fraction) / (many - few))
    if evidence.seldom_wrong and error <= _SELDOM_WRONG:
        return max(1.0, strictness)
    return max(_MILDEST, strictness) if _gains(evidence) else 0.0


def _mean(evidence: Evidence, shares_C: tuple[float, ...]) -> float:
    return sum(shares_C) / evidence.num_classes


def auto_strata(signals: Signals, budget: int, *, balanced: bool, seed: int) -> Selection:
    """Random examples of every stratum; the findings say what was known.

    Args:
        signals: of examples with labels or numbers.
        budget: K.
        balanced: equal shares for the strata, as far as they reach, or those that they have.
        seed: of what is drawn.
    """
    labels_N = signals.labels_N
    surplus_N = surplus_pictures(given(signals.pictures_N, "near copies"))
    copies = float(surplus_N.double().mean())
    spared_N = surplus_N if copies >= REDUNDANT else torch.zeros_like(surplus_N)
    # Copies are taken only where there is nothing else left.
    if int((~spared_N).sum()) < budget:
        spared_N = torch.zeros_like(surplus_N)
    counts = labels_N[~spared_N].bincount(minlength=int(labels_N.max()) + 1).tolist()
    share = class_quotas if balanced else proportional_quotas
    parts = []
    for label, quota in enumerate(share(counts, budget)):
        rows = torch.nonzero((labels_N == label) & ~spared_N).flatten()
        if quota:
            # As for strategies that see one class at a time: plain random is that of them.
            own_seed = derive_seed(seed, "selection-class", label)
            chosen = uniform(signals.take(rows), quota, seed=own_seed)
            parts.append(rows[chosen.indices_K.to(rows.device)])
    words = [
        f"the targets are {signals.kind.words}: no gain over random is known of any choice",
        f"{copies:.1%} of the examples are near copies of others",
        "random in equal shares of the strata" if balanced else "random in the strata's shares",
    ]
    if bool(spared_N.any()):
        words.append("one of each picture")
    findings = {
        "words": words,
        "method": "random",
        "copies": copies,
        "left_out": {"count": int(spared_N.sum())},
    }
    return replace(unweighted(torch.cat(parts)), findings=findings)


def surplus_pictures(pictures_N: Tensor) -> Tensor:
    """Which examples are near copies of an earlier one; N bool."""
    order_N = pictures_N.argsort(stable=True)
    sorted_N = pictures_N[order_N]
    surplus_N = torch.zeros_like(pictures_N, dtype=torch.bool)
    surplus_N[order_N[1:]] = sorted_N[1:] == sorted_N[:-1]
    return surplus_N


STRATEGY = Strategy(
    function=auto,
    summary="by what is found in the data; class-balanced random where no gain is known",
    paper="",
    cost="N (C + d) + N^2 d / C",
    needs=SIGNALS | {Need.COPIES},
    revision=1,
    proxy="auto",
)
