"""Auto: diagnose the data, and choose by the findings.

1. Evidence: leave-one-out outputs of a ridge head give label quality and the noise rate (Northcutt
   et al. 2021, arXiv:1911.00068). Near-duplicate images are counted.
2. Plan: the lowest-quality labels of each class are excluded: a multiple of the head's error rate
   there, which falls with the fraction kept. Wrong labels and near-duplicates are excluded at any
   fraction, if it is certain that there are some.
3. Choice among the rest: facility location on the features (Wei et al. 2015, ICML) or random, in
   equal shares of the classes by default.

Nothing is excluded for its label where the head is too weak, or where the model that is trained on
the chosen examples probably knows better than the head does.

Where no gain over class-balanced random was measured, the plan is class-balanced random. For labels
or numbers no gain is known: every stratum (rarest label, or quantile) gets its share.

Figures below are accuracies from docs/results.md and docs/value.md: resnet8 on 50,000 images of
cifar10-jpeg, 1,000 steps of 64 (short) or 6,000 (converged). Differences below two points say
little. The head's error rate there is 35%.

Shapes: N examples, n of one class, C classes, K budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from lipt.common.determinism import derive_seed
from lipt.core.diagnosis.findings import SKILL
from lipt.core.diagnosis.label_errors import SURE_NOISE, LabelQuality, find_label_errors
from lipt.core.proxies.ridge import fullness
from lipt.core.selection.selection import (
    Selection,
    class_quotas,
    effective_counts,
    proportional_quotas,
    unweighted,
)
from lipt.core.selection.strategies.facility_location import facility_location
from lipt.core.selection.strategies.random_draws import uniform
from lipt.core.selection.strategy import SIGNALS, Cost, Growth, Need, built_in
from lipt.core.signals.signals import Signals, required, unlabelled
from lipt.data.targets.kinds import TargetKind

# Main training to the end, or stopped early as in a search of hyper-parameters.
Training = Literal["converged", "short"]
Method = Literal["facility_location", "random"]

# Up to the first fraction or number per class, `_STRICTEST` times the head's errors are excluded;
# from the second on none; linear in between; the lower of both. Converged, the gain on clean data
# is +11.0 points at 1% (50 per class), +0.2 at 5% and none at 10%. Short, it is +3.3 points at 10%
# (500) and 0 at 30%.
_FROM_FEW_TO_MANY: dict[Training, tuple[float, float]] = {
    "converged": (0.01, 0.1),
    "short": (0.05, 0.2),
}
_FEW_TO_MANY_PER_CLASS: dict[Training, tuple[float, float]] = {
    "converged": (20, 200),
    "short": (250, 1000),
}
# At 5%, short, excluding the worst 50% reaches 57.6, the head's errors 56.4, suspects (14%) 56.5.
# Class-balanced random reaches 54.6.
_STRICTEST = 1.5
# Facility location picks atypical examples, so at least this multiple of the head's errors is
# excluded first. At 10%, short: without the suspects (0.4) 59.0, of all examples 57.9.
_MILDEST = 0.4
# Below this fraction facility location chooses among the rest, else random. At 10%, short, without
# the head's errors, it reaches 60.5. Class-balanced random reaches 58.2 and 55.7 in two trainings.
# From this many per class on it gains as little, and is slow: on four tables of 100,000 rows -1.1
# to +0.6 points at 1,000 per class (mean 0.0), -1.1 to +2.0 at 2,000 (mean +0.3; two seeds).
_REPRESENTED, _REPRESENTED_PER_CLASS = 0.2, 1000
# A class keeps at least 30%: at 1%, excluding three quarters was as good as half (50.7).
_MOST = 0.7
# Exclusions per wrong label, as not all low-quality labels are wrong. With 36% wrong, excluding
# half reached 58.5, the suspects 53.9.
_PER_WRONG_LABEL = 1.5
# A linear head errs where the data is not linear, and a model trained on many examples does not.
# Exclusions fade between these numbers of chosen examples of a class per feature of the head, times
# the share of the possible that it misses beyond the next figure. Of 100,000 rows with five classes
# that products and waves decide, excluding 30% costs 10 points at 10% (74.6 and 64.9; here 2.4).
_AS_GOOD, _BETTER = 0.5, 1.0
# A head with errors up to this share, in all and in the class, is right where it contradicts a
# label: on digits 70 of 71 suspects were wrong.
_RELIABLE_ERROR = 0.1
# Near-duplicates are excluded from this share on. With three copies of each image the gain is
# +11.7, +6.8 and +6.6 points at 5%, 10% and 30%. In handwritten digits 8% only look alike.
REDUNDANT = 0.2
# Keeps a manifest readable on one page; a diagnosis has all ids.
_MAX_NAMED = 1000


@built_in(
    summary="what suits the data; random where no gain is known",
    cost=Cost(Growth.PAIRS, "N (C + d) + N^2 d / C"),
    needs=SIGNALS | {Need.DUPLICATES},
    revision=1,
    proxy="auto",
)
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
    """Keep the examples that the findings in the data recommend, and report these.

    The signals come from a head whose output for an example is leave-one-out.
    """
    if signals.kind is not TargetKind.CLASS:
        return auto_strata(signals, budget, balanced=balanced, seed=seed)
    labels_N, pictures_N = signals.labels_N, required(signals.pictures_N, "near-duplicates")
    found = find_label_errors(signals)
    # Near-duplicates of an example with a better label.
    order_N = found.quality_N.argsort(descending=True, stable=True)
    copies_N = torch.empty_like(found.suspects_N)
    copies_N[order_N] = surplus_duplicates(pictures_N[order_N])
    copies = float(copies_N.double().mean())
    evidence = gather(signals, found, budget, training, copies)
    plan = make_plan(evidence)
    if not plan.excludes_duplicates:
        copies_N = torch.zeros_like(copies_N)
    counts_C = labels_N.bincount(minlength=len(plan.wrong_C)).tolist()
    own_C = labels_N[~copies_N].bincount(minlength=len(counts_C)).tolist()
    counted_C = effective_counts(own_C if sum(own_C) >= budget else counts_C, plan.wrong_C, budget)
    share = class_quotas if balanced else proportional_quotas
    candidates, excluded = [], []
    for label, quota in enumerate(share(counted_C, budget)):
        rows = torch.nonzero(labels_N == label).flatten()
        # Best labels first, near-duplicates last.
        rows = rows[found.quality_N[rows].argsort(descending=True, stable=True)]
        rows = rows[copies_N[rows].int().argsort(stable=True)]
        num_candidates = max(quota, round((1 - plan.excluded_C[label]) * own_C[label]))
        candidates.append((rows[:num_candidates].sort().values, quota))
        excluded.append(rows[num_candidates:])
    chosen = _choose(signals, candidates, plan.method, seed)
    findings = _findings(evidence, plan, found, torch.cat(excluded))
    return replace(chosen, findings=findings, is_random=plan.method == "random")


@dataclass(frozen=True)
class Evidence:
    """The plan's inputs, with the share of examples to keep.

    per_class: number of examples to keep of each class, on average.
    num_features: those of the head; infinite for a user's own class probabilities.
    errors_C: share of each class that the head misclassifies, on held-out labels.
    full_C: weight of each class: 1, less if it has few examples, 0 if none.
    noise_rate, noise_low, noise_C: share of wrong labels, its lower bound, and by class.
    copies: share of the examples that are near-duplicates of others.
    """

    fraction: float
    per_class: float
    num_features: float
    errors_C: tuple[float, ...]
    full_C: tuple[float, ...]
    noise_rate: float
    noise_low: float
    noise_C: tuple[float, ...]
    copies: float = 0.0
    training: Training = "converged"

    @property
    def num_classes(self) -> float:
        """The sum of the classes' weights: a mistyped label is no class."""
        return sum(self.full_C)

    def mean(self, values_C: Sequence[float]) -> float:
        """Mean over classes by their weights, of values in [0, 1]."""
        total = sum(full * value for full, value in zip(self.full_C, values_C, strict=True))
        return min(1.0, total / self.num_classes)

    @property
    def accuracy(self) -> float:
        """The head's accuracy, mean over classes."""
        return 1.0 - self.mean(self.errors_C)

    @property
    def head_decides(self) -> bool:
        """Whether few examples are kept, and the head is probably right against a label."""
        return 1.0 - self.accuracy <= _RELIABLE_ERROR and self.fewness_per_class > 0

    @property
    def fewness(self) -> float:
        """1 for few examples, of which excluding others gains on clean data, 0 for many."""
        by_fraction = _falling(self.fraction, *_FROM_FEW_TO_MANY[self.training])
        return min(by_fraction, self.fewness_per_class)

    @property
    def fewness_per_class(self) -> float:
        """The same by their number alone."""
        return _falling(self.per_class, *_FEW_TO_MANY_PER_CLASS[self.training])

    @property
    def trust(self) -> float:
        """1 where the head probably knows better than the trained model will, 0 where not."""
        missed = 1.0 - self.skill - _RELIABLE_ERROR
        return _falling(missed * self.per_class / self.num_features, _AS_GOOD, _BETTER)

    @property
    def skill(self) -> float:
        """0 for guessing, 1 for the best accuracy that wrong labels leave possible."""
        if self.num_classes <= 1:
            return 0.0
        guessing = 1.0 / self.num_classes
        # An untrained head disagrees with most labels, which looks like noise.
        possible = max(1.0 - self.mean(self.noise_C), (1.0 + guessing) / 2)
        return (self.accuracy - guessing) / (possible - guessing)


def gather(
    signals: Signals, found: LabelQuality, budget: int, training: Training, copies: float = 0.0
) -> Evidence:
    """The evidence from label errors and the share of near-duplicates."""
    labels_N = signals.labels_N
    counts_C = labels_N.bincount(minlength=len(found.joint_CC))
    wrong_C = labels_N[found.suggested_N != labels_N].bincount(minlength=len(counts_C))
    full_C, own = fullness(counts_C), "probabilities" in (signals.facts or {})
    return Evidence(
        fraction=budget / len(labels_N),
        per_class=budget / float(full_C.sum()),
        num_features=math.inf if own else signals.features_ND.shape[1],
        errors_C=tuple((wrong_C / counts_C.clamp(min=1)).tolist()),
        full_C=tuple(full_C.tolist()),
        noise_rate=found.noise.overall.rate,
        noise_low=found.noise.overall.low,
        noise_C=tuple(rate.rate for rate in found.noise.per_class),
        copies=copies,
        training=training,
    )


@dataclass(frozen=True)
class Plan:
    """Which examples are excluded, and how the rest is chosen.

    excluded_C: share of each class that is excluded, its lowest-quality labels.
    wrong_C: share of each class that is wrong, and does not count for its quota.
    excludes_duplicates: whether near-duplicates are excluded.
    """

    excluded_C: tuple[float, ...]
    wrong_C: tuple[float, ...]
    method: Method
    reason: str
    excludes_duplicates: bool = False


# Smaller shares are named with a decimal.
_NAMED_SHARE = 0.01


def make_plan(evidence: Evidence) -> Plan:
    """Decide which examples to exclude, and how to choose among the rest."""
    if evidence.copies < REDUNDANT:
        return _by_labels(evidence)
    fraction = min(1.0, evidence.fraction / (1.0 - evidence.copies))
    plan = _by_labels(replace(evidence, fraction=fraction))
    copies = f"as {evidence.copies:.1%} are near-duplicates of others"
    reason = f"{plan.reason}; one of each picture, {copies}"
    return replace(plan, excludes_duplicates=True, reason=reason)


def learners_can_matter(evidence: Evidence, removed: float) -> bool:
    """Whether another head may lead to another plan than class-balanced random of all examples.

    evidence: from untrained features. removed: share of their head's errors that learners' features
    remove at best.
    """
    better = replace(
        evidence,
        errors_C=tuple((1.0 - removed) * error for error in evidence.errors_C),
        noise_low=max(evidence.noise_low, evidence.noise_rate),
    )
    plans = map(make_plan, (evidence, better))
    return any(plan.method != "random" or any(plan.excluded_C) for plan in plans)


def _by_labels(evidence: Evidence) -> Plan:
    nothing = (0.0,) * len(evidence.errors_C)
    if evidence.skill < SKILL:
        right = f"right on {evidence.accuracy:.1%} of the labels"
        reason = (
            f"class-balanced random: a head on the proxy's features is {right} that it has not "
            "seen, too few to go by. Features of your own may help"
        )
        if math.isinf(evidence.num_features):
            reason = f"class-balanced random: pred_probs are {right}, too few to go by"
        return Plan(nothing, nothing, "random", reason)
    if not evidence.trust:
        reason = (
            "class-balanced random: a model trained on "
            f"{evidence.per_class:.0f} examples of a class probably knows better than a head on "
            f"{evidence.num_features} features, which is right on {evidence.accuracy:.1%}"
        )
        return Plan(nothing, nothing, "random", reason)
    wrong_C = nothing
    # With the 0.1% (0.0 to 4.1%) of cifar10-jpeg, excluding examples costs right ones.
    if evidence.noise_low >= SURE_NOISE:
        # The estimate for one class is rough: assume at least its share of all wrong labels.
        wrong_C = tuple(
            evidence.trust * min(_MOST, error, _PER_WRONG_LABEL * max(rate, evidence.noise_rate))
            for error, rate in zip(evidence.errors_C, evidence.noise_C, strict=True)
        )
    excluded_C = tuple(
        min(_MOST, max(evidence.trust * _strictness(evidence, error) * error, wrong))
        for error, wrong in zip(evidence.errors_C, wrong_C, strict=True)
    )
    kept = f"{100 * evidence.fraction:.2g}% of the examples"
    least, left = "", evidence.mean(excluded_C)
    if left:
        share = f"{left:.0%}" if left >= _NAMED_SHARE else f"{left:.1%}"
        least = f", without the {share} with the lowest label quality"
    is_small = evidence.fraction < _REPRESENTED and evidence.per_class < _REPRESENTED_PER_CLASS
    if is_small and (evidence.fewness > 0 or evidence.head_decides or any(excluded_C)):
        reason = f"to keep {kept}: of each class those that represent it{least}"
        return Plan(excluded_C, wrong_C, "facility_location", reason)
    if any(excluded_C):
        reason = f"to keep {kept}: class-balanced random{least}"
        return Plan(excluded_C, wrong_C, "random", reason)
    reason = (
        f"class-balanced random: no gain is known of choosing {kept} where labels are right and "
        f"main training is {evidence.training}. A smaller fraction or soft labels may gain"
    )
    return Plan(nothing, nothing, "random", reason)


def _strictness(evidence: Evidence, error: float) -> float:
    """Number of exclusions per error of the head in a class."""
    strictness = _STRICTEST * evidence.fewness
    if evidence.head_decides and error <= _RELIABLE_ERROR:
        return max(1.0, strictness)
    return max(_MILDEST, strictness) if evidence.fewness > 0 else 0.0


def _falling(number: float, start: float, stop: float) -> float:
    """1 up to the first end, 0 from the second on, linear in between."""
    return min(1.0, max(0.0, (stop - number) / (stop - start)))


def _choose(
    signals: Signals, candidates: Iterable[tuple[Tensor, int]], method: Method, seed: int
) -> Selection:
    chosen = []
    for label, (rows, quota) in enumerate(candidates):
        if not quota:
            continue
        # The seed of strategies that see one class at a time: random equals `uniform_per_class`.
        own_seed = derive_seed(seed, "selection-class", label)
        if method == "random":
            found = uniform(unlabelled(len(rows)), quota, seed=own_seed)
        else:
            found = facility_location(signals.take(rows), quota, seed=own_seed, space="features")
        chosen.append(rows[found.indices_K.to(rows.device)])
    return unweighted(torch.cat(chosen))


def _findings(
    evidence: Evidence, plan: Plan, found: LabelQuality, excluded: Tensor
) -> dict[str, Any]:
    noise = found.noise.overall
    interval = f"{noise.low:.1%} to {noise.high:.1%}"
    wrong = f"how many labels are wrong is unknown: {interval}, as far as the head can tell"
    if noise.known_rate is not None:
        wrong = f"{noise.rate:.1%} of the labels look wrong (95% interval {interval})"
    by_quality = excluded[found.quality_N[excluded].argsort(stable=True)]
    return {
        "words": [
            plan.reason,
            wrong,
            f"{evidence.copies:.1%} of the examples are near-duplicates of others",
        ],
        "method": plan.method,
        "noise": {"low": noise.low, "rate": noise.known_rate, "high": noise.high},
        "accuracy": evidence.accuracy,
        "copies": evidence.copies,
        "excluded": {
            "count": len(excluded),
            "share_per_class": [round(share, 4) for share in plan.excluded_C],
            "lowest_quality_ids": by_quality[:_MAX_NAMED].tolist(),
        },
    }


def auto_strata(signals: Signals, budget: int, *, balanced: bool, seed: int) -> Selection:
    """Draw from every stratum of examples with labels or numbers."""
    labels_N = signals.labels_N
    surplus_N = surplus_duplicates(required(signals.pictures_N, "near-duplicates"))
    copies = float(surplus_N.double().mean())
    # Near-duplicates are used only if nothing else is left.
    if copies < REDUNDANT or int((~surplus_N).sum()) < budget:
        surplus_N = torch.zeros_like(surplus_N)
    counts = labels_N[~surplus_N].bincount(minlength=int(labels_N.max()) + 1).tolist()
    quotas = (class_quotas if balanced else proportional_quotas)(counts, budget)
    strata = (
        (torch.nonzero((labels_N == label) & ~surplus_N).flatten(), quota)
        for label, quota in enumerate(quotas)
    )
    words = [
        f"the targets are {signals.kind.words}: no gain over random is known of any choice",
        f"{copies:.1%} of the examples are near-duplicates of others",
        "random in equal shares of the strata" if balanced else "random in the strata's shares",
    ]
    if bool(surplus_N.any()):
        words.append("one of each picture")
    findings = {
        "words": words,
        "method": "random",
        "copies": copies,
        "excluded": {"count": int(surplus_N.sum())},
    }
    return replace(_choose(signals, strata, "random", seed), findings=findings, is_random=True)


def surplus_duplicates(pictures_N: Tensor) -> Tensor:
    """Which examples are near-duplicates of an earlier one; N bool."""
    order_N = pictures_N.argsort(stable=True)
    sorted_N = pictures_N[order_N]
    surplus_N = torch.zeros_like(pictures_N, dtype=torch.bool)
    surplus_N[order_N[1:]] = sorted_N[1:] == sorted_N[:-1]
    return surplus_N
