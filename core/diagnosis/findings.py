"""Findings: the faults of a whole data set, as one frozen value with one form as JSON.

A diagnosis' file has them under "diagnosis" in its metadata, beside its columns. Fields are the
keys. pydantic reads them strictly, and ignores unknown keys. Classes are numbers; `class_names` has
their names. Lists of ids are cut to the worst; the columns have all. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lipt.data.targets.kinds import TargetKind

# A file's tensors: one value per example, of these types.
COLUMNS = {
    "given_label": "int32",
    "suggested_label": "int32",
    "label_quality": "float32",
    "suspect": "uint8",
    "duplicate_of": "int32",
    "outlier_score": "float32",
}

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]

# From this accuracy on a head is right where it contradicts a label.
_RELIABLE = 0.9
# A head with this many examples of a class per feature cannot fit them all.
_MANY_PER_FEATURE = 10
# Below this skill a head's output for an example is noise: it cannot tell wrong labels from classes
# that overlap.
SKILL = 0.2


def skill_of(accuracy: float, num_classes: float) -> float:
    """A head's accuracy, mean over classes: 0 for guessing, 1 if it names all labels.

    `num_classes` is a sum of `fullness`.
    """
    guessing = 1 / num_classes
    return (accuracy - guessing) / (1 - guessing) if guessing < 1 else 0.0


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class ClassNoise(_Value):
    """`noise_rate` is None where the interval is too wide for an estimate."""

    label: Count
    count: Count
    suspects: Count
    noise_rate: Share | None
    low: Share
    high: Share


class LabelIssue(_Value):
    """A label that looks wrong, the class that fits better, and how well the given one fits."""

    id: Count
    given: Count
    suggested: Count
    quality: Finite


class LabelErrors(_Value):
    """`noise_rate` is None where the interval is too wide for an estimate; `ranked` is cut."""

    num_suspects: Count
    noise_rate: Share | None
    noise_low: Share
    noise_high: Share
    per_class: tuple[ClassNoise, ...]
    ranked: tuple[LabelIssue, ...]


class Confusion(_Value):
    """Examples of class `given` that surely look like `suggested`; their share of `given`."""

    given: Count
    suggested: Count
    count: Count
    share: Share


class Duplicates(_Value):
    """Groups of duplicates, cut to the largest; `surplus` are all except one per group."""

    exact_groups: Count
    near_groups: Count
    surplus: Count
    conflicting: Count
    threshold: Finite
    groups: tuple[tuple[Count, ...], ...]


class Imbalance(_Value):
    """The sizes of non-empty classes; `ratio` is of the largest to the smallest."""

    ratio: Finite
    smallest: Count
    largest: Count


class Outliers(_Value):
    """Examples far from all others, the farthest first; `ranked` is cut."""

    count: Count
    ranked: tuple[Count, ...]


class ClassRedundancy(_Value):
    """Number of examples that cover 90% of a class."""

    label: Count
    count: Count
    examples_for_90: Count


class Redundancy(_Value):
    """Number of examples that cover 90% of the data, by facility location on a sample."""

    share_for_90: Share
    examples_for_90: Count
    per_class: tuple[ClassRedundancy, ...]
    sampled: Count


class LearningCurve(_Value):
    """Accuracies by the number of examples, ascending up to all, and the suggested fraction."""

    sizes: tuple[Count, ...]
    accuracies: tuple[Share, ...]
    suggested_fraction: Share
    reason: str


class Findings(_Value):
    """All findings. `num_full_classes` counts a class of few examples as a part of one."""

    version: Literal[1] = 1
    num_examples: Annotated[int, Field(ge=1)]
    class_names: tuple[str, ...]
    class_counts: tuple[Count, ...]
    num_full_classes: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    proxy: Mapping[str, Any]
    label_errors: LabelErrors
    confusion: tuple[Confusion, ...]
    duplicates: Duplicates
    imbalance: Imbalance
    outliers: Outliers
    redundancy: Redundancy
    learnability: LearningCurve
    target_kind: TargetKind = TargetKind.CLASS
    # Of other targets than classes, which have no suspects.
    worst_fitting: tuple[Count, ...] = ()

    @model_validator(mode="after")
    def _require_consistent(self) -> Self:
        labels = [
            *(self.imbalance.smallest, self.imbalance.largest),
            *(label for pair in self.confusion for label in (pair.given, pair.suggested)),
            *(item.label for item in self.label_errors.per_class),
            *(item.label for item in self.redundancy.per_class),
        ]
        for what, fits in (
            ("names of classes", len(self.class_names) == len(self.class_counts)),
            ("labels", max(labels) < len(self.class_names)),
            ("worst rows", max(self.worst_fitting, default=-1) < self.num_examples),
            ("outliers", self.outliers.count <= self.num_examples),
            ("learning curve", len(self.learnability.sizes) == len(self.learnability.accuracies)),
        ):
            if not fits:
                raise ValueError(f"its {what} do not fit its sizes")
        return self

    @property
    def head_accuracy(self) -> float | None:
        """The proxy's leave-one-out accuracy, or other score; None if unknown."""
        accuracy = self.proxy.get("accuracy")
        return accuracy if isinstance(accuracy, float) else None

    @property
    def has_own_probabilities(self) -> bool:
        """Whether label errors come from a user's own class probabilities."""
        return "probabilities" in self.proxy

    @property
    def head_is_limited(self) -> bool:
        """Whether the head may err for other reasons than wrong labels and too few examples.

        Its own estimate of wrong labels then counts these errors, too.
        """
        num_features = self.proxy.get("num_features")
        if self.has_own_probabilities:
            return False
        if not isinstance(num_features, int) or self.learnability.accuracies[-1] >= _RELIABLE:
            return False
        per_class = self.num_examples / self.num_full_classes
        is_flat = self.learnability.suggested_fraction < 1
        return is_flat and per_class >= _MANY_PER_FEATURE * num_features

    @property
    def head_guesses(self) -> bool:
        """Whether the head is right on hardly more labels than guessing."""
        if self.head_accuracy is None or self.num_full_classes <= 1:
            return False
        return skill_of(self.head_accuracy, self.num_full_classes) < SKILL

    @property
    def num_sure(self) -> int:
        """Number of surely wrong labels: half of the lower estimate; 0 if the head is limited."""
        if self.head_is_limited:
            return 0
        lowest = int(0.5 * self.label_errors.noise_low * self.num_examples)
        return min(lowest, self.label_errors.num_suspects)
