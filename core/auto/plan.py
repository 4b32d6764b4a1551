"""Plan: which examples `auto` excludes, and how it chooses among the rest.

The lowest-quality labels of each class are excluded: a multiple of the head's error rate there,
which falls with the fraction kept. Wrong labels and near-duplicates are excluded at any fraction,
if it is certain that there are some. Nothing is excluded for its label where the head is too weak,
or where the trained model probably knows better. Where no gain over class-balanced random was
measured, the plan is class-balanced random. `lipt.core.auto.evidence` says what the figures are of.

Shapes: C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from lipt.core.auto.evidence import RELIABLE_ERROR, Evidence
from lipt.core.diagnosis.findings import SKILL
from lipt.core.diagnosis.label_errors import SURE_NOISE

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
# Near-duplicates are excluded from this share on. With three copies of each image the gain is
# +11.7, +6.8 and +6.6 points at 5%, 10% and 30%. In handwritten digits 8% only look alike.
REDUNDANT = 0.2


class Method(StrEnum):
    """A choice among the examples that are not excluded."""

    FACILITY_LOCATION = "facility_location"
    RANDOM = "random"


class Reason(StrEnum):
    """Why a plan is as it is."""

    WEAK_HEAD = "weak head"
    """The head is right on too few labels to go by."""
    BETTER_MODEL = "better model"
    """A model trained on so many examples probably knows better than the head."""
    FEW = "few"
    """Few examples are kept: those that represent their class gain."""
    EXCLUSION = "exclusion"
    """Some are excluded, and random ones of the rest gain as much as any."""
    NO_GAIN = "no gain"
    """No gain over class-balanced random is known."""


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
    reason: Reason
    excludes_duplicates: bool = False


def make_plan(evidence: Evidence) -> Plan:
    """Decide which examples to exclude, and how to choose among the rest."""
    if evidence.copies < REDUNDANT:
        return _by_labels(evidence)
    return replace(_by_labels(without_copies(evidence)), excludes_duplicates=True)


def without_copies(evidence: Evidence) -> Evidence:
    """The evidence on the data without its near-duplicates."""
    fraction = min(1.0, evidence.fraction / (1.0 - evidence.copies))
    return replace(evidence, fraction=fraction)


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
    return any(plan.method is not Method.RANDOM or any(plan.excluded_C) for plan in plans)


def _by_labels(evidence: Evidence) -> Plan:
    nothing = (0.0,) * len(evidence.errors_C)
    if evidence.skill < SKILL:
        return Plan(nothing, nothing, Method.RANDOM, Reason.WEAK_HEAD)
    if not evidence.trust:
        return Plan(nothing, nothing, Method.RANDOM, Reason.BETTER_MODEL)
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
    is_small = evidence.fraction < _REPRESENTED and evidence.per_class < _REPRESENTED_PER_CLASS
    if is_small and (evidence.fewness > 0 or evidence.head_decides or any(excluded_C)):
        return Plan(excluded_C, wrong_C, Method.FACILITY_LOCATION, Reason.FEW)
    if any(excluded_C):
        return Plan(excluded_C, wrong_C, Method.RANDOM, Reason.EXCLUSION)
    return Plan(nothing, nothing, Method.RANDOM, Reason.NO_GAIN)


def _strictness(evidence: Evidence, error: float) -> float:
    """Number of exclusions per error of the head in a class."""
    strictness = _STRICTEST * evidence.fewness
    if evidence.head_decides and error <= RELIABLE_ERROR:
        return max(1.0, strictness)
    return max(_MILDEST, strictness) if evidence.fewness > 0 else 0.0
