"""Diagnosis: all findings of one data set as one value, and the file that it is kept in.

The file is safetensors. Its tensors are columns, one value per example: `given_label`,
`suggested_label` and `duplicate_of` int32, `label_quality` and `outlier_score` float32,
`suspect` uint8. Its metadata has the findings as JSON under "diagnosis": version 1, with lists
of examples cut to the worst of them. Columns have all.

Shapes: N examples, C classes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipt.common.data.quarantine import Numbering
from lipt.common.targets.kinds import TargetKind
from lipt.common.weights.files import pack
from lipt.core.diagnosis.duplicates import Duplicates
from lipt.core.diagnosis.label_errors import LabelErrors
from lipt.core.diagnosis.learnability import Learnability
from lipt.core.diagnosis.outliers import Outliers
from lipt.core.signals.stored import load_tensors

VERSION = 1
_MOST_SUSPECTS = 1000
_MOST_OUTLIERS = 1000
_MOST_GROUPS = 200
# Of a group of thousands the first say enough.
_MOST_OF_GROUP = 100

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Findings:
    """What was found, each by its own function."""

    label_errors: LabelErrors
    duplicates: Duplicates
    outliers: Outliers
    learnability: Learnability

    def by_id(self, numbering: Numbering, labels_N: Tensor) -> Findings:
        """What was found of examples at their places, told of ids."""
        if not numbering.left_out:
            return self
        errors, duplicates, left_out = (
            self.label_errors,
            self.duplicates,
            torch.tensor(numbering.left_out),
        )
        return replace(
            self,
            label_errors=replace(
                errors,
                quality_N=numbering.spread(errors.quality_N, errors.quality_N.max()),
                suggested_N=numbering.spread(errors.suggested_N, labels_N[left_out]),
                suspects_N=numbering.spread(errors.suspects_N, 0),
            ),
            duplicates=replace(
                duplicates, kept_N=numbering.spread(numbering.ids(duplicates.kept_N), left_out)
            ),
            outliers=replace(self.outliers, scores_N=numbering.spread(self.outliers.scores_N, 1.0)),
        )


@dataclass(frozen=True)
class Diagnosis:
    """What is the matter with a data set.

    summary: of the whole, as JSON.
    columns: of each example; N values under every name.
    """

    summary: Facts
    columns: Mapping[str, Tensor]

    def pack(self) -> bytes:
        """The content of a safetensors file."""
        summary = json.dumps(dict(self.summary), allow_nan=False)
        return pack(self.columns, {"diagnosis": summary})

    @classmethod
    def load(cls, path: Path) -> Diagnosis:
        """Read a file of what `pack` gave."""
        return load_tensors(
            path,
            "diagnosis",
            lambda tensors, metadata: cls(json.loads(metadata["diagnosis"]), tensors),
        )


def diagnosis_of(
    findings: Findings,
    *,
    labels_N: Tensor,
    class_names: Sequence[str],
    kind: TargetKind = TargetKind.CLASS,
    proxy: Facts,
    redundancy: Facts,
    seconds: Mapping[str, float],
) -> Diagnosis:
    """Put the findings together."""
    errors, duplicates, outliers = findings.label_errors, findings.duplicates, findings.outliers
    counts_C = labels_N.bincount(minlength=len(class_names))
    far_out = outliers.ranked()
    summary = {
        "version": VERSION,
        "target_kind": kind.value,
        # Of others than classes, which have suspects: the worst fitting targets.
        "worst_fitting": [] if kind is TargetKind.CLASS else _worst_fitting(errors),
        "num_examples": len(labels_N),
        "class_names": list(class_names),
        "class_counts": counts_C.tolist(),
        "proxy": dict(proxy),
        "label_errors": _label_errors(errors, labels_N, counts_C),
        "confusion": [asdict(pair) for pair in confusions(errors.joint_CC, counts_C)],
        "duplicates": {
            "exact_groups": duplicates.exact_groups,
            "near_groups": duplicates.near_groups,
            "surplus": duplicates.surplus,
            "conflicting": duplicates.conflicting,
            "threshold": duplicates.threshold,
            "groups": [group[:_MOST_OF_GROUP] for group in duplicates.groups()[:_MOST_GROUPS]],
        },
        "imbalance": asdict(imbalance(counts_C.tolist())),
        "outliers": {"count": len(far_out), "ranked": far_out[:_MOST_OUTLIERS].tolist()},
        "redundancy": dict(redundancy),
        "learnability": {
            **asdict(findings.learnability),
            "sizes": list(findings.learnability.sizes),
            "accuracies": list(findings.learnability.accuracies),
        },
        "seconds": dict(seconds),
    }
    columns = {
        "given_label": labels_N.to(torch.int32),
        "suggested_label": errors.suggested_N.to(torch.int32),
        "label_quality": errors.quality_N,
        "suspect": errors.suspects_N.to(torch.uint8),
        "duplicate_of": duplicates.kept_N.to(torch.int32),
        "outlier_score": outliers.scores_N,
    }
    return Diagnosis(summary, columns)


def _worst_fitting(found: LabelErrors) -> list[int]:
    ids: list[int] = found.quality_N.argsort(stable=True)[:_MOST_SUSPECTS].tolist()
    return ids


def _label_errors(found: LabelErrors, labels_N: Tensor, counts_C: Tensor) -> Facts:
    ranked = found.ranked()
    suspects_C = labels_N[found.suspects_N].bincount(minlength=len(counts_C))
    overall = found.noise.overall
    worst = ranked[:_MOST_SUSPECTS]
    columns = (worst, labels_N[worst], found.suggested_N[worst], found.quality_N[worst])
    return {
        "num_suspects": len(ranked),
        "noise_rate": overall.rate,
        "noise_low": overall.low,
        "noise_high": overall.high,
        "per_class": [
            {
                "label": label,
                "count": int(counts_C[label]),
                "suspects": int(suspects_C[label]),
                "noise_rate": noise.rate,
                "low": noise.low,
                "high": noise.high,
            }
            for label, noise in enumerate(found.noise.per_class)
        ],
        "ranked": [
            {"id": example, "given": given, "suggested": suggested, "quality": quality}
            for example, given, suggested, quality in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ],
    }


@dataclass(frozen=True)
class Confusion:
    """How many labelled `given` are surely taken for `suggested`; share is of all so labelled."""

    given: int
    suggested: int
    count: int
    share: float


def confusions(joint_CC: Tensor, counts_C: Tensor, *, most: int = 20) -> list[Confusion]:
    """The pairs of classes that are confused most often, most often first."""
    num_classes = len(counts_C)
    off_CC = joint_CC.clone().fill_diagonal_(0).flatten()
    order = off_CC.argsort(descending=True, stable=True)[:most]
    pairs = []
    for place in order[off_CC[order] > 0].tolist():
        given, suggested = divmod(place, num_classes)
        count = int(off_CC[place])
        pairs.append(Confusion(given, suggested, count, count / int(counts_C[given])))
    return pairs


@dataclass(frozen=True)
class Imbalance:
    """Of the classes that have examples.

    ratio: how many times as many the largest has as the smallest.
    smallest, largest: their labels; the lowest of equal ones.
    effective_classes: the exponential of the classes' entropy (Hill 1973, "Diversity and
        Evenness"): 10 for ten equal ones, towards 1 for one that is all.
    """

    ratio: float
    smallest: int
    largest: int
    effective_classes: float


def imbalance(counts: Sequence[int]) -> Imbalance:
    """Compare the classes' sizes."""
    present = [label for label, count in enumerate(counts) if count]
    if not present:
        raise ValueError("there are no examples in any class")
    smallest = min(present, key=lambda label: counts[label])
    largest = max(present, key=lambda label: counts[label])
    total = sum(counts)
    shares = [counts[label] / total for label in present]
    return Imbalance(
        ratio=counts[largest] / counts[smallest],
        smallest=smallest,
        largest=largest,
        effective_classes=math.exp(-sum(share * math.log(share) for share in shares)),
    )
