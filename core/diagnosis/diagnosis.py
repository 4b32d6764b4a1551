"""Diagnosis: outliers, a learning curve, and all findings of a data set in one file.

Outlier scores are mean distances to the ten nearest others, relative to the median example's.
Distances are in scaled features projected on 128 random directions (which changes them by some 6%),
to at most 10,000 examples. Outliers are above Tukey's fence: the upper quartile plus three
interquartile ranges.

The learning curve is the leave-one-out accuracy of a ridge head on class-stratified samples, each
half of the next, and on all. The suggested size is the smallest from which doubling gains less than
a point. A network has more to learn than the head, and can use more examples.

The file is safetensors. Its tensors are columns, one value per example, and its metadata has the
findings as JSON under "diagnosis".

Shapes: N examples, R references, D features, M directions, B examples of a block, C classes, n
examples of a sample.
Source: Ramaswamy et al. 2000, "Efficient Algorithms for Mining Outliers from Large Data Sets".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipt.common.tensor_files import load_tensors, pack
from lipt.core.diagnosis.duplicates import DuplicateGroups
from lipt.core.diagnosis.findings import (
    COLUMNS,
    ClassNoise,
    Confusion,
    Duplicates,
    Findings,
    Imbalance,
    LabelErrors,
    LabelIssue,
    LearningCurve,
    Outliers,
    Redundancy,
)
from lipt.core.diagnosis.label_errors import LabelQuality
from lipt.core.passes import row_blocks
from lipt.core.proxies.ridge import (
    HeadTargets,
    float64_blocks,
    fullness,
    leave_one_out,
    scaling_of,
)
from lipt.data.dataset import IdMapping
from lipt.data.groups import mixed_evenly
from lipt.data.targets.kinds import TargetKind

# Maximum length of each list in the findings.
_MOST_SUSPECTS = _MOST_OUTLIERS = 1000
_MOST_GROUPS, _MOST_OF_GROUP, _MOST_CONFUSIONS = 200, 100, 20

_NEIGHBOURS, _NUM_DIRECTIONS, _MOST_REFERENCES, _FENCE = 10, 128, 10_000, 3.0

_MOST_HALVINGS = 5
# Smaller samples are too noisy to compare; larger ones cost more time than they are worth.
_FEWEST, _LARGEST_SAMPLE = 100, 12_500
# Points of accuracy that a doubling has to gain.
_WORTH_POINTS = 1.0


@dataclass(frozen=True)
class OutlierScores:
    """Float32 distance scores, 1 for the median example; outliers are above the fence."""

    scores_N: Tensor
    fence: float

    def ranked(self) -> Tensor:
        """The ids of outliers, the farthest first; ties keep the data set's order."""
        ids = torch.nonzero(self.scores_N > self.fence).flatten()
        return ids[self.scores_N[ids].argsort(descending=True, stable=True)]


def find_outliers(features_ND: Tensor, *, generator: torch.Generator) -> OutlierScores:
    """Score each example's distance from all others."""
    num_examples, num_features = features_ND.shape
    scaling = scaling_of(features_ND, torch.ones(num_examples, dtype=torch.float64))
    directions_DM = torch.eye(num_features)
    if num_features > _NUM_DIRECTIONS:
        directions_DM = torch.randn(num_features, _NUM_DIRECTIONS, generator=generator)
        directions_DM /= math.sqrt(_NUM_DIRECTIONS)
    sketches_NM = torch.empty(num_examples, directions_DM.shape[1])
    for rows, block_BD in float64_blocks(features_ND):
        sketches_NM[rows] = scaling.apply_(block_BD).float() @ directions_DM
    drawn_R = torch.randperm(num_examples, generator=generator)[:_MOST_REFERENCES]
    references_R = drawn_R.sort().values
    kept_RM = sketches_NM[references_R]
    count = min(_NEIGHBOURS, len(references_R) - 1)
    scores_N = torch.zeros(num_examples)
    if count < 1:
        return OutlierScores(scores_N, torch.inf)
    for rows in row_blocks(num_examples, 8 * len(references_R)):
        distances_BR = torch.cdist(sketches_NM[rows], kept_RM)
        own_B = torch.arange(rows.start, rows.stop)
        distances_BR.masked_fill_(own_B[:, None] == references_R, torch.inf)
        scores_N[rows] = distances_BR.topk(count, largest=False).values.mean(dim=1)
    median = float(scores_N.median())
    if median == 0:
        # Duplicates have distance 0; if most examples are duplicates, there is no scale.
        return OutlierScores(scores_N, torch.inf)
    ordered_N = scores_N.div_(median).sort().values
    lower, upper = (float(ordered_N[int(share * (num_examples - 1))]) for share in (0.25, 0.75))
    return OutlierScores(scores_N, upper + _FENCE * (upper - lower))


def learning_curve(
    features_ND: Tensor,
    labels_N: Tensor,
    num_classes: int,
    accuracy: float,
    *,
    head_targets: HeadTargets | None = None,
    generator: torch.Generator,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> LearningCurve:
    """Measure the head on growing samples; `accuracy` is its leave-one-out score on all."""
    order_N, accuracies = stratified_order(labels_N, generator), list[float]()
    sizes = sample_sizes(len(labels_N))
    for done, size in enumerate(sizes):
        ids_n = order_N[:size].sort().values
        head = leave_one_out(
            features_ND[ids_n],
            labels_N[ids_n],
            num_classes,
            generator=generator,
            head_targets=None if head_targets is None else head_targets.take(ids_n),
        )
        accuracies.append(head.accuracy)
        on_progress(done + 1, len(sizes))
    shares = [min(1.0, max(0.0, score)) for score in (*accuracies, accuracy)]
    return suggest_size((*sizes, len(labels_N)), shares)


def sample_sizes(num_examples: int) -> list[int]:
    """N halved repeatedly, ascending, without N itself."""
    halves = [num_examples >> halvings for halvings in range(1, _MOST_HALVINGS + 1)]
    return sorted(size for size in halves if _FEWEST <= size <= _LARGEST_SAMPLE)


def stratified_order(labels_N: Tensor, generator: torch.Generator) -> Tensor:
    """Random ids such that the first n have every class in its share, for any n."""
    shuffled_N = torch.randperm(len(labels_N), generator=generator)
    by_class_N = shuffled_N[labels_N[shuffled_N].argsort(stable=True)]
    return by_class_N[mixed_evenly(labels_N[by_class_N])]


def suggest_size(sizes: Sequence[int], accuracies: Sequence[float]) -> LearningCurve:
    """Suggest a size: all of the data if even the last doubling gained a point."""

    def result(fraction: float, reason: str) -> LearningCurve:
        return LearningCurve(
            sizes=tuple(sizes),
            accuracies=tuple(accuracies),
            suggested_fraction=fraction,
            reason=reason,
        )

    if len(sizes) < 2:
        return result(1.0, f"{sizes[-1]} examples are too few to draw samples of.")
    gains = []
    for place in range(1, len(sizes)):
        doublings = torch.tensor(sizes[place] / sizes[place - 1]).log2().item()
        gains.append(100 * (accuracies[place] - accuracies[place - 1]) / doublings)
    for place, size in enumerate(sizes[:-1]):
        most = max(gains[place:])
        if most < _WORTH_POINTS:
            return result(
                size / sizes[-1],
                f"from {size} examples on a doubling gains less than {_WORTH_POINTS:g} point of "
                f"leave-one-out accuracy (at most {most:.1f}).",
            )
    shrinks = gains[-1] / gains[-2] if len(gains) > 1 and gains[-2] > 0 else 1.0
    following = max(0.0, gains[-1] * min(1.0, shrinks))
    return result(
        1.0,
        f"the last doubling, to all {sizes[-1]} examples, still gained {gains[-1]:.1f} points of "
        f"leave-one-out accuracy; twice as many examples would gain about {following:.1f} more.",
    )


@dataclass(frozen=True)
class DataFindings:
    """All findings, each by its own function."""

    label_errors: LabelQuality
    duplicates: DuplicateGroups
    outliers: OutlierScores
    learnability: LearningCurve

    def by_id(self, id_mapping: IdMapping, labels_N: Tensor) -> DataFindings:
        """The findings by id, including excluded examples, instead of positions."""
        errors, duplicates = self.label_errors, self.duplicates
        excluded = torch.tensor(id_mapping.excluded, dtype=torch.int64)
        return replace(
            self,
            label_errors=replace(
                errors,
                quality_N=id_mapping.by_id(errors.quality_N, errors.quality_N.max()),
                suggested_N=id_mapping.by_id(errors.suggested_N, labels_N[excluded]),
                suspects_N=id_mapping.by_id(errors.suspects_N, 0),
            ),
            duplicates=replace(
                duplicates, kept_N=id_mapping.by_id(id_mapping.ids(duplicates.kept_N), excluded)
            ),
            outliers=replace(self.outliers, scores_N=id_mapping.by_id(self.outliers.scores_N, 1.0)),
        )


@dataclass(frozen=True)
class DiagnosisFile:
    """The diagnosis of a data set: findings, and columns of N values by name."""

    findings: Findings
    columns: Mapping[str, Tensor]

    def pack(self) -> bytes:
        """The content of a safetensors file."""
        return pack(self.columns, {"diagnosis": self.findings.model_dump_json()})

    @classmethod
    def load(cls, path: Path) -> DiagnosisFile:
        """Read a file of `pack`."""

        def build(tensors: dict[str, Tensor], metadata: dict[str, str]) -> DiagnosisFile:
            return cls(Findings.model_validate_json(metadata["diagnosis"], strict=True), tensors)

        return load_tensors(path, build)


def diagnosis_of(
    of_data: DataFindings,
    *,
    labels_N: Tensor,
    class_names: Sequence[str],
    kind: TargetKind = TargetKind.CLASS,
    proxy: Mapping[str, Any],
    redundancy: Redundancy,
) -> DiagnosisFile:
    """Combine the findings; strata replace classes for other targets."""
    errors, duplicates, outliers = of_data.label_errors, of_data.duplicates, of_data.outliers
    counts_C = labels_N.bincount(minlength=len(class_names))
    far_out = outliers.ranked()
    worst: list[int] = errors.quality_N.argsort(stable=True)[:_MOST_SUSPECTS].tolist()
    groups = duplicates.groups()[:_MOST_GROUPS]
    findings = Findings(
        target_kind=kind,
        worst_fitting=() if kind is TargetKind.CLASS else tuple(worst),
        num_examples=len(labels_N),
        class_names=tuple(class_names),
        class_counts=tuple(counts_C.tolist()),
        num_full_classes=float(fullness(counts_C).sum()),
        proxy=dict(proxy),
        label_errors=_label_errors(errors, labels_N, counts_C),
        confusion=confusions(errors.joint_CC, counts_C),
        duplicates=Duplicates(
            exact_groups=duplicates.exact_groups,
            near_groups=duplicates.near_groups,
            surplus=duplicates.surplus,
            conflicting=duplicates.conflicting,
            threshold=duplicates.threshold,
            groups=tuple(tuple(group[:_MOST_OF_GROUP]) for group in groups),
        ),
        imbalance=imbalance(counts_C.tolist()),
        outliers=Outliers(count=len(far_out), ranked=tuple(far_out[:_MOST_OUTLIERS].tolist())),
        redundancy=redundancy,
        learnability=of_data.learnability,
    )
    columns = {
        "given_label": labels_N,
        "suggested_label": errors.suggested_N,
        "label_quality": errors.quality_N,
        "suspect": errors.suspects_N,
        "duplicate_of": duplicates.kept_N,
        "outlier_score": outliers.scores_N,
    }
    dtypes = {name: getattr(torch, dtype) for name, dtype in COLUMNS.items()}
    return DiagnosisFile(findings, {name: columns[name].to(dtypes[name]) for name in COLUMNS})


def _label_errors(labels: LabelQuality, labels_N: Tensor, counts_C: Tensor) -> LabelErrors:
    ranked, overall = labels.ranked(), labels.noise.overall
    suspects_C = labels_N[labels.suspects_N].bincount(minlength=len(counts_C))
    per_class = (
        ClassNoise(
            label=label,
            count=int(counts_C[label]),
            suspects=int(suspects_C[label]),
            noise_rate=noise.known_rate,
            low=noise.low,
            high=noise.high,
        )
        for label, noise in enumerate(labels.noise.per_class)
    )
    worst = (
        LabelIssue(
            id=example,
            given=int(labels_N[example]),
            suggested=int(labels.suggested_N[example]),
            quality=float(labels.quality_N[example]),
        )
        for example in ranked[:_MOST_SUSPECTS].tolist()
    )
    return LabelErrors(
        num_suspects=len(ranked),
        noise_rate=overall.known_rate,
        noise_low=overall.low,
        noise_high=overall.high,
        per_class=tuple(per_class),
        ranked=tuple(worst),
    )


def confusions(joint_CC: Tensor, counts_C: Tensor) -> tuple[Confusion, ...]:
    """The most often surely confused pairs of classes; shares are of the given class."""
    off_CC = joint_CC.clone().fill_diagonal_(0).flatten()
    order = off_CC.argsort(descending=True, stable=True)[:_MOST_CONFUSIONS]
    pairs = list[Confusion]()
    for place in order[off_CC[order] > 0].tolist():
        given, suggested = divmod(place, len(counts_C))
        count = int(off_CC[place])
        share = count / int(counts_C[given])
        pairs.append(Confusion(given=given, suggested=suggested, count=count, share=share))
    return tuple(pairs)


def imbalance(counts: Sequence[int]) -> Imbalance:
    """Compare the sizes of non-empty classes; ties go to the lowest label."""
    present = [label for label, count in enumerate(counts) if count]
    smallest = min(present, key=lambda label: counts[label])
    largest = max(present, key=lambda label: counts[label])
    ratio = counts[largest] / counts[smallest]
    return Imbalance(ratio=ratio, smallest=smallest, largest=largest)
