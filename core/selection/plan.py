"""Plan: what `auto` does with what was found in the data, and why.

The fewer are kept, the more typical they should be: of each class the examples whose labels a
head trusts least are left out, a multiple of the share that the head gets wrong there. The
multiple falls with the fraction kept, and sooner where main training goes on to the end: then
what is atypical is learned, too, and is worth as much as what is typical. Wrong labels and near
copies are left out at any fraction, where it is sure that there are some, and so is what a
head gets wrong that is seldom wrong. Where no gain over
class-balanced random was measured, the plan is class-balanced random. The figures behind every
number here are in docs/value.md and docs/results.md.

Shapes: C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

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
