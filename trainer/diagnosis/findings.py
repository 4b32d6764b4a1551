"""Findings: what a diagnosis says of a whole data set, as frozen values and in a few words each.

The fields are the keys of the JSON in a diagnosis' file, and pydantic reads them strictly: a
number is no text, counts are not negative, shares lie in 0..1. Keys that a later version adds are
passed over. Classes are numbers here; `Findings.class_names` has their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from lipt.common.targets.kinds import TargetKind
from lipt.trainer.writing.formatting import format_percent

Count = Annotated[int, Field(ge=0)]
Id = Annotated[int, Field(ge=0)]
Label = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class LabelIssue:
    """An example whose label is likely to be wrong."""

    id: Id
    given: Label
    suggested: Label
    quality: Finite


@dataclass(frozen=True)
class ClassNoise:
    """How many labels of a class are wrong, estimated, with a 95% interval."""

    label: Label
    count: Count
    suspects: Count
    noise_rate: Share
    low: Share
    high: Share


@dataclass(frozen=True)
class LabelErrors:
    """Wrong labels: those that were found, and an estimate of how many there are."""

    num_suspects: Count
    noise_rate: Share
    noise_low: Share
    noise_high: Share
    per_class: tuple[ClassNoise, ...]
    # The worst come first, and not all of them.
    ranked: tuple[LabelIssue, ...]


@dataclass(frozen=True)
class Confusion:
    """Two classes that are taken for each other; `share` is of the given class."""

    given: Label
    suggested: Label
    count: Count
    share: Share


@dataclass(frozen=True)
class Duplicates:
    """Examples that are there more than once."""

    exact_groups: Count
    near_groups: Count
    surplus: Count
    conflicting: Count
    threshold: Finite
    groups: tuple[tuple[Id, ...], ...]


@dataclass(frozen=True)
class Imbalance:
    """How unequal the classes are; `ratio` is of the largest to the smallest."""

    ratio: Finite
    smallest: Label
    largest: Label
    effective_classes: Finite


@dataclass(frozen=True)
class Outliers:
    """Examples far from everything, the farthest first."""

    count: Count
    ranked: tuple[Id, ...]


@dataclass(frozen=True)
class ClassRedundancy:
    """How much of a class stands for 90% of it."""

    label: Label
    count: Count
    examples_for_90: Count


@dataclass(frozen=True)
class Redundancy:
    """How few examples carry 90% of what all do, by facility location."""

    share_for_90: Share
    examples_for_90: Count
    per_class: tuple[ClassRedundancy, ...]
    # How many examples it was taken on.
    sampled: Count


@dataclass(frozen=True)
class Learnability:
    """Leave-one-out accuracy by number of examples, and the fraction worth asking for."""

    sizes: tuple[Count, ...]
    accuracies: tuple[Share, ...]
    suggested_fraction: Share
    why: str


@dataclass(frozen=True)
class Findings:
    """All that was found in one data set."""

    version: int
    num_examples: Annotated[int, Field(ge=1)]
    class_names: tuple[str, ...]
    class_counts: tuple[Count, ...]
    # What looked at the data, and how well it sees.
    proxy: Mapping[str, Any]
    label_errors: LabelErrors
    confusion: tuple[Confusion, ...]
    duplicates: Duplicates
    imbalance: Imbalance
    outliers: Outliers
    redundancy: Redundancy
    learnability: Learnability
    # By what was done meanwhile.
    seconds: Mapping[str, Finite]
    # Of others than classes, strata stand where classes do, and no label is called wrong.
    target_kind: TargetKind = TargetKind.CLASS
    # Examples whose targets a head that has not seen them misses by most; not all of them.
    worst_fitting: tuple[Id, ...] = ()

    @property
    def num_sure(self) -> int:
        """How many suspects are surely wrong: half of the wrong labels that there are at least."""
        return min(
            int(0.5 * self.label_errors.noise_low * self.num_examples),
            self.label_errors.num_suspects,
        )

    def name(self, label: int) -> str:
        """What a class is called."""
        return self.class_names[label]


_MOST_PAIRS = 3
_MOST_ROWS = 5
_WORST = "the targets furthest from what is expected are those of rows"


@dataclass(frozen=True)
class Fact:
    """One kind of finding."""

    name: str
    text: str
    clear: bool


def facts(findings: Findings) -> tuple[Fact, ...]:
    """Every kind of finding, the one that matters most first."""
    return (
        _labels(findings),
        _confusion(findings),
        _duplicates(findings),
        _imbalance(findings),
        _outliers(findings),
        _redundancy(findings),
        _learnability(findings),
    )


def proxy_text(findings: Findings) -> str:
    """What looked at the data, and how well it sees; empty where the file does not say."""
    features, accuracy = findings.proxy.get("features"), findings.proxy.get("accuracy")
    if not isinstance(features, str):
        return ""
    head = f"a ridge head on {features}"
    if not isinstance(accuracy, float):
        return head
    if findings.target_kind is not TargetKind.CLASS:
        score = findings.target_kind.score_name
        return f"{head}, with {score} {format_percent(accuracy)} on examples as if not seen"
    return f"{head}, right on {format_percent(accuracy)} of the examples that it did not learn from"


def fit_text(quality: float) -> str:
    """How well a label fits, in 0..1; among the worst labels digits further back say nothing."""
    return "<0.01" if quality < 0.01 else f"{quality:.2f}"


def _labels(findings: Findings) -> Fact:
    found = findings.label_errors
    if findings.target_kind is not TargetKind.CLASS:
        worst = ", ".join(map(str, findings.worst_fitting[:_MOST_ROWS]))
        text = f"told of classes alone, and this is {findings.target_kind.words}; {_WORST} {worst}"
        return Fact("label errors", text, clear=True)
    share = (
        f"of all labels an estimated {format_percent(found.noise_rate)} are wrong "
        f"({format_percent(found.noise_low)} to {format_percent(found.noise_high)})"
    )
    if not found.num_suspects:
        return Fact("label errors", f"none looks wrong; {share}", clear=True)
    sure = f", the worst {findings.num_sure:,} surely so" if findings.num_sure else ""
    return Fact(
        "label errors",
        f"{found.num_suspects:,} look wrong{sure}; {share}",
        clear=False,
    )


def _confusion(findings: Findings) -> Fact:
    pairs = findings.confusion
    if not pairs:
        return Fact("confused classes", "none", clear=True)
    name = findings.name
    told = [
        f"{name(pair.given)} that look like {name(pair.suggested)} ({format_percent(pair.share)})"
        for pair in pairs[:_MOST_PAIRS]
    ]
    return Fact("confused classes", ", ".join(told), clear=False)


def _duplicates(findings: Findings) -> Fact:
    found = findings.duplicates
    if not found.surplus:
        return Fact("duplicates", "none", clear=True)
    text = (
        f"{found.surplus:,} surplus: {_counted(found.exact_groups, 'picture')} more than once, "
        f"{_counted(found.near_groups, 'group')} nearly alike"
    )
    if found.conflicting:
        text += f"; the labels of {_counted(found.conflicting, 'group')} disagree"
    return Fact("duplicates", text, clear=False)


def _imbalance(findings: Findings) -> Fact:
    found, counts = findings.imbalance, findings.class_counts
    if found.ratio == 1.0:
        return Fact("imbalance", f"none: {counts[found.largest]:,} of every class", clear=True)
    text = (
        f"{found.ratio:.3g} to 1: {findings.name(found.largest)} has {counts[found.largest]:,}, "
        f"{findings.name(found.smallest)} {counts[found.smallest]:,}"
    )
    return Fact("imbalance", text, clear=found.ratio < 2.0)


def _outliers(findings: Findings) -> Fact:
    count = findings.outliers.count
    text = f"{_counted(count, 'example')} far from everything" if count else "none"
    return Fact("outliers", text, clear=not count)


def _redundancy(findings: Findings) -> Fact:
    found = findings.redundancy
    text = (
        f"{found.examples_for_90:,} examples ({format_percent(found.share_for_90)}) carry 90% of "
        "what all do"
    )
    return Fact("redundancy", text, clear=True)


def _learnability(findings: Findings) -> Fact:
    found = findings.learnability
    text = f"worth asking for: a fraction of {found.suggested_fraction:.3g}"
    why = f": {found.why.rstrip('.')}" if found.why else ""
    return Fact("learnability", text + why, clear=True)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
