"""Findings: what a diagnosis says of a whole data set, each kind a frozen value.

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

Count = Annotated[int, Field(ge=0)]
Id = Annotated[int, Field(ge=0)]
Label = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class LabelIssue:
    """An example whose label is likely to be wrong.

    quality: how well its label fits it, low where it does not.
    """

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
    """Examples that are there more than once.

    surplus: how many would go if one of each group were kept.
    conflicting: groups whose examples do not have one label.
    threshold: cosine from which two examples are near duplicates.
    groups: ids, the largest group first; not all of them.
    """

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
