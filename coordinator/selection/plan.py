"""Plan: what `auto` does with what was found in the data, and why.

The fewer are kept, the more typical they should be; where half and more is kept nothing should
go that is not wrong. Where no gain over class-balanced random was ever measured, the plan is
class-balanced random. The figures behind every number here are in docs/value.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Up to this share kept, the most typical half of a class is enough to draw from.
FEW = 0.05
# Up to this share kept, what is atypical is worth less than what is typical.
SOME = 0.15
# Where at least as many labels are wrong, the better half of a class is drawn from, as long as
# that is enough: what is lost of the right ones is worth less than the wrong ones cost.
NOISY = 0.1
# Of what is between guessing and knowing: below it the head's word on an example is noise.
SKILL = 0.2


@dataclass(frozen=True)
class Evidence:
    """What is known when the plan is made.

    fraction: share of the examples to keep.
    accuracy: of the head on labels that it has not seen; guessing: that of a guess.
    noise_low, noise_rate: of the labels, how many are wrong: at least, and most likely.
    num_suspects: examples whose labels look wrong.
    num_surplus: near copies of others.
    """

    fraction: float
    accuracy: float
    guessing: float
    noise_low: float
    noise_rate: float
    num_suspects: int
    num_surplus: int

    @property
    def skill(self) -> float:
        """0 for guessing, 1 for always right, of what the noise leaves to be right about."""
        possible = max(1.0 - self.noise_rate, self.guessing + 1e-9)
        return (self.accuracy - self.guessing) / max(possible - self.guessing, 1e-9)


@dataclass(frozen=True)
class Plan:
    """What is left out, and how the rest is drawn from.

    leave_out_suspects: whether examples with suspicious labels go, as far as the budget allows.
    share: of each class, its most trustworthy labels first, that is drawn from.
    method: facility location on the features, or random.
    why: in a sentence.
    """

    leave_out_suspects: bool
    share: float
    method: Literal["facility_location", "random"]
    why: str


def make_plan(evidence: Evidence) -> Plan:
    """What to do; surplus copies go in any case."""
    kept = f"{evidence.fraction:.0%}"
    if evidence.skill < SKILL:
        return Plan(
            leave_out_suspects=False,
            share=1.0,
            method="random",
            why=f"the proxy is right on {evidence.accuracy:.1%} of the examples that it has not "
            "seen, too few to go by: class-balanced random",
        )
    if evidence.noise_low >= NOISY:
        few = evidence.fraction <= SOME
        return Plan(
            leave_out_suspects=True,
            share=0.5,
            method="facility_location" if few else "random",
            why=f"at least {evidence.noise_low:.1%} of the labels are wrong: kept of the better "
            "half of each class",
        )
    if evidence.fraction <= FEW:
        return Plan(
            leave_out_suspects=True,
            share=0.5,
            method="facility_location",
            why=f"of {kept}, the typical are worth most: kept of the more typical half of each "
            "class, so that they represent it",
        )
    if evidence.fraction <= SOME:
        return Plan(
            leave_out_suspects=True,
            share=1.0,
            method="facility_location",
            why=f"at {kept} what is atypical is worth less than what is typical: kept so that "
            "they represent the rest of their class",
        )
    return Plan(
        leave_out_suspects=False,
        share=1.0,
        method="random",
        why=f"no gain is known of choosing {kept} of clean data: class-balanced random",
    )
