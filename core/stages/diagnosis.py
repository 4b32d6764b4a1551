"""Diagnosis: findings about labels, duplicates and balance."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

import torch

from lipt.common.data import Dataset, all_labels
from lipt.common.data.parallel import Progress, map_rows
from lipt.common.determinism import derive_generator, pinned_kernels
from lipt.common.errors import ProxyError
from lipt.common.inputs.specs import ImageSpec
from lipt.common.targets.kinds import TargetKind
from lipt.core.diagnosis.diagnosis import (
    Diagnosis,
    Facts,
    Findings,
    diagnosis_of,
    find_outliers,
    learning_curve,
)
from lipt.core.diagnosis.duplicates import (
    Copies,
    are_pictures,
    find_copies,
    find_duplicates,
    likeness_of_pictures,
    look_at,
)
from lipt.core.diagnosis.label_errors import find_label_errors, fit_of_targets
from lipt.core.proxies.ridge import HeadTargets
from lipt.core.selection.redundancy import Redundancy, redundancy
from lipt.core.signals.signals import Signals
from lipt.core.stages.proxy import proxied_signals
from lipt.core.stages.proxy_features import ProxyQuestion
from lipt.core.workspace import Workspace

# Copies of a data set: which examples are there more than once, looked for once, kept on disk.
#
# Pictures may be nearly the same; of other examples only equal ones are copies.


def copies_of(workspace: Workspace, cpu_threads: int) -> Copies:
    """Which example each one is a copy of, the same for all who ask."""
    dataset = workspace.dataset

    def compute() -> Copies:
        looking = workspace.progress("looking at all examples")
        if not isinstance(dataset.inputs, ImageSpec):
            return find_copies(_digests(dataset, looking), None)
        pictures = look_at(dataset.images, len(dataset), on_progress=looking)
        compare = are_pictures(dataset.inputs)
        return find_copies(
            pictures.digests,
            likeness_of_pictures(pictures, dataset.images) if compare else None,
            on_progress=workspace.progress("looking for near copies"),
        )

    depends_on = (dataset.fingerprint, dataset.inputs, cpu_threads)
    with pinned_kernels(cpu_threads):
        return workspace.cached("pictures", depends_on, load=Copies.load, compute=compute)


def _digests(dataset: Dataset, on_progress: Progress) -> list[bytes]:
    def digest(row: int) -> bytes:
        return hashlib.sha256(dataset.raw_bytes(row)).digest()

    return list(map_rows(digest, range(len(dataset)), num_threads=1, progress=on_progress))


# Diagnosing: all findings about a data set, by the signals of a proxy.


def diagnose(workspace: Workspace, question: ProxyQuestion) -> Diagnosis:
    """Look through the data by the signals of a proxy."""
    if question.proxy.is_own_head:
        raise ProxyError(
            f"the proxy {question.proxy} cannot diagnose: its head has learned from the "
            "labels that it would judge. Choose auto or ridge:..., such as ridge:patches."
        )
    clock = _Clock()
    with clock.of("signals"):
        signals, proxy = proxied_signals(workspace, question)
    with pinned_kernels(question.config.evaluation_threads):
        findings, needed = _find(workspace, question, signals, proxy, clock)
    labels_N = all_labels(workspace.dataset)
    return diagnosis_of(
        findings.by_id(workspace.numbering, labels_N),
        labels_N=labels_N,
        class_names=workspace.dataset.class_names,
        kind=signals.kind,
        proxy=proxy,
        redundancy=_facts(needed, signals),
        seconds=clock.seconds,
    )


def _find(
    workspace: Workspace, question: ProxyQuestion, signals: Signals, proxy: Facts, clock: _Clock
) -> tuple[Findings, Redundancy]:
    labels_N, num_classes = signals.labels_N, len(workspace.dataset.class_names)

    def generator(purpose: str) -> torch.Generator:
        return derive_generator(question.config.seed, f"diagnosis: {purpose}")

    def progress(activity: str) -> Callable[[int, int], None]:
        return workspace.progress(activity)

    with clock.of("label_errors"):
        if signals.kind is TargetKind.CLASS:
            errors = find_label_errors(signals)
        else:
            errors = fit_of_targets(signals, num_classes)
    with clock.of("duplicates"):
        copies = copies_of(workspace, question.config.evaluation_threads)
        duplicates = find_duplicates(labels_N, errors.quality_N, copies)
    with clock.of("outliers"):
        outliers = find_outliers(signals.features_ND, generator=generator("outliers"))
    with clock.of("redundancy"):
        needed = redundancy(
            signals.features_ND,
            labels_N,
            num_classes,
            generator=generator("redundancy"),
            on_progress=progress("measuring redundancy"),
        )
    with clock.of("learnability"):
        curve = learning_curve(
            signals.features_ND,
            labels_N,
            num_classes,
            float(proxy["accuracy"]),
            wanted=HeadTargets.of(workspace.dataset),
            generator=generator("learning curve"),
            on_progress=progress("measuring a learning curve"),
        )
    return Findings(errors, duplicates, outliers, curve), needed


@dataclass(frozen=True)
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        started = monotonic()
        yield
        self.seconds[part] = monotonic() - started


def _facts(needed: Redundancy, signals: Signals) -> Facts:
    counts = signals.labels_N.bincount(minlength=len(needed.per_class)).tolist()
    return {
        "share_for_90": needed.share,
        "examples_for_90": needed.examples,
        "per_class": [
            {"label": label, "count": count, "examples_for_90": examples}
            for label, (count, examples) in enumerate(zip(counts, needed.per_class, strict=True))
        ],
        "sampled": needed.looked_at,
    }
