"""Findings: the faults of a whole data set, as frozen values and as short texts.

Fields are the JSON keys of a diagnosis' file. pydantic reads them strictly, and ignores unknown
keys. Classes are numbers; `Findings.class_names` has their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from lipt.common.targets.kinds import TargetKind

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class LabelIssue(NamedTuple):
    id: int
    given: int
    suggested: int
    quality: float


class ClassNoise(_Value):
    """`noise_rate` is None where the interval is too wide for an estimate."""

    label: Count
    count: Count
    suspects: Count
    noise_rate: Share | None
    low: Share
    high: Share


class LabelErrors(_Value):
    """`noise_rate` is None where the interval is too wide for an estimate."""

    num_suspects: Count
    noise_rate: Share | None
    noise_low: Share
    noise_high: Share
    per_class: tuple[ClassNoise, ...]


class Confusion(_Value):
    given: Count
    suggested: Count
    count: Count
    share: Share


class Duplicates(_Value):
    exact_groups: Count
    near_groups: Count
    surplus: Count
    conflicting: Count
    threshold: Finite


class Imbalance(_Value):
    ratio: Finite
    smallest: Count
    largest: Count


class Outliers(_Value):
    count: Count


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


class Learnability(_Value):
    sizes: tuple[Count, ...]
    accuracies: tuple[Share, ...]
    suggested_fraction: Share
    reason: str


# From this accuracy on a head is right where it contradicts a label.
_RELIABLE = 0.9
# A head with this many examples of a class per feature cannot fit them all.
_MANY_PER_FEATURE = 10
# A class with fewer examples is a part of a class, as in the head.
_FULL_CLASS = 20
# A head with less of the way from guessing to all labels can tell nothing from overlapping classes.
_SKILL = 0.2


class Findings(_Value):
    version: int
    num_examples: Annotated[int, Field(ge=1)]
    class_names: tuple[str, ...]
    class_counts: tuple[Count, ...]
    proxy: Mapping[str, Any]
    label_errors: LabelErrors
    confusion: tuple[Confusion, ...]
    duplicates: Duplicates
    imbalance: Imbalance
    outliers: Outliers
    redundancy: Redundancy
    learnability: Learnability
    target_kind: TargetKind = TargetKind.CLASS
    worst_fitting: tuple[Count, ...] = ()

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
        per_class = self.num_examples / self._num_full_classes
        is_flat = self.learnability.suggested_fraction < 1
        return is_flat and per_class >= _MANY_PER_FEATURE * num_features

    @property
    def head_guesses(self) -> bool:
        """Whether the head is right on hardly more labels than guessing."""
        if self.head_accuracy is None or self._num_full_classes <= 1:
            return False
        guessing = 1 / self._num_full_classes
        return (self.head_accuracy - guessing) / (1 - guessing) < _SKILL

    @property
    def _num_full_classes(self) -> float:
        full = max(1, min(_FULL_CLASS, max(self.class_counts)))
        return sum(min(1.0, count / full) for count in self.class_counts)

    @property
    def num_sure(self) -> int:
        """Number of surely wrong labels: half of the lower estimate; 0 if the head is limited."""
        if self.head_is_limited:
            return 0
        lowest = int(0.5 * self.label_errors.noise_low * self.num_examples)
        return min(lowest, self.label_errors.num_suspects)


class Fact(NamedTuple):
    """One kind of finding as text; `clear` means that no action is needed."""

    name: str
    text: str
    clear: bool


def facts(findings: Findings) -> list[Fact]:
    """Describe every kind of finding, the most important first."""
    pairs, balance = findings.confusion, findings.imbalance
    needed, curve = findings.redundancy, findings.learnability
    name, counts, far = findings.class_names, findings.class_counts, findings.outliers.count
    confused = ", ".join(
        f"{name[pair.given]} that look like {name[pair.suggested]} ({pair.share:.1%})"
        for pair in pairs[:3]
    )
    unequal = (
        f"{balance.ratio:.3g} to 1: {name[balance.largest]} has {counts[balance.largest]:,}, "
        f"{name[balance.smallest]} {counts[balance.smallest]:,}"
    )
    if balance.ratio == 1.0:
        unequal = f"none: {counts[balance.largest]:,} of every class"
    outliers = f"{_counted(far, 'example')} far from everything" if far else "none"
    few = f"{needed.examples_for_90:,} examples ({needed.share_for_90:.1%})"
    worth = f"suggested fraction: {curve.suggested_fraction:.3g}"
    if curve.reason:
        worth += f": {curve.reason.rstrip('.')}"
    return [
        _label_errors(findings),
        Fact("confused classes", confused or "none", clear=not pairs),
        _duplicates(findings.duplicates),
        Fact("imbalance", unequal, clear=balance.ratio < 2.0),
        Fact("outliers", outliers, clear=not far),
        Fact("redundancy", f"{few} represent 90% of the data", clear=True),
        Fact("learnability", worth, clear=True),
    ]


def _duplicates(found: Duplicates) -> Fact:
    if not found.surplus:
        return Fact("duplicates", "none", clear=True)
    text = (
        f"{found.surplus:,} surplus: {_counted(found.exact_groups, 'identical group')}, "
        f"{_counted(found.near_groups, 'similar group')}"
    )
    if found.conflicting:
        text += f"; the labels of {_counted(found.conflicting, 'group')} disagree"
    return Fact("duplicates", text, clear=False)


def _label_errors(findings: Findings) -> Fact:
    found = findings.label_errors
    if findings.target_kind is not TargetKind.CLASS:
        worst = ", ".join(map(str, findings.worst_fitting[:5]))
        text = (
            f"found for classes only, and these are {findings.target_kind.words}; the targets "
            f"furthest from what is expected are those of rows {worst}"
        )
        return Fact("label errors", text, clear=True)
    share = noise_text(findings)
    if not found.num_suspects:
        return Fact("label errors", f"none looks wrong; {share}", clear=found.noise_high < 1)
    sure = f", {findings.num_sure:,} of them with confidence" if findings.num_sure else ""
    text = f"{found.num_suspects:,} look wrong{sure}; {share}"
    if findings.head_guesses:
        text += "; this head is right on hardly more than guessing, so most of these may be right"
    elif findings.head_is_limited:
        text += "; this head is too simple for so many examples, so many of these may be right"
    return Fact("label errors", text, clear=False)


def noise_text(findings: Findings) -> str:
    """The estimated share of wrong labels, with the accuracy of the head that it comes from."""
    found, accuracy = findings.label_errors, findings.head_accuracy
    if found.noise_low == 0.0 and found.noise_high == 1.0:
        return (
            f"{findings.num_examples:,} examples and this head are too little to estimate how many "
            "labels are wrong"
        )
    source = "pred_probs that are" if findings.has_own_probabilities else "a head that is"
    ends = f"{found.noise_low:.1%} to {found.noise_high:.1%}"
    head = "this head" if accuracy is None else f"{source} right on {accuracy:.1%}"
    if found.noise_rate is None:
        return f"of all labels {ends} are wrong, and {head} cannot say more closely"
    return f"of all labels an estimated {found.noise_rate:.1%} are wrong ({ends}, by {head})"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def proxy_text(findings: Findings) -> str:
    """Describe the proxy model and its score; empty if unknown."""
    features, accuracy = findings.proxy.get("features"), findings.head_accuracy
    if not isinstance(features, str):
        return ""
    head = f"a ridge head on {features}"
    if findings.has_own_probabilities:
        return f"pred_probs, accuracy {accuracy or 0:.1%}, beside the features {features}"
    if accuracy is None:
        return head
    if findings.target_kind is not TargetKind.CLASS:
        score = findings.target_kind.score_name
        return f"{head}, with {score} {accuracy:.1%} on examples as if not seen"
    return f"{head}, leave-one-out accuracy {accuracy:.1%}"


def fit_text(quality: float) -> str:
    """Format a label's quality, in 0..1, with its significant digits."""
    return "<0.01" if quality < 0.01 else f"{quality:.2f}"
