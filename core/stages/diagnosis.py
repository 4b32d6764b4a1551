"""Diagnosis of a data set by the signals of a proxy, and the near-duplicates in it."""

from __future__ import annotations

import hashlib
from functools import partial

import torch
from torch import Tensor

from lipt.common.computation import computation
from lipt.common.determinism import derive_generator
from lipt.common.errors import ProxyError
from lipt.common.requests import Proxy
from lipt.core.diagnosis.diagnosis import (
    DataFindings,
    DiagnosisFile,
    diagnosis_of,
    find_outliers,
    learning_curve,
)
from lipt.core.diagnosis.duplicates import (
    Matches,
    Pictures,
    are_pictures,
    find_duplicates,
    find_matches,
)
from lipt.core.diagnosis.label_errors import find_label_errors, fit_of_targets
from lipt.core.kept_values import Key
from lipt.core.passes import row_blocks
from lipt.core.progress import CallPart
from lipt.core.proxies.proxy import with_features_as_text
from lipt.core.proxies.ridge import HeadTargets
from lipt.core.selection.solvers.representatives import redundancy
from lipt.core.stages.completions import diagnose_completions
from lipt.core.stages.proxy import proxied_signals, with_probabilities
from lipt.core.stages.resolve import Sources
from lipt.core.workspace import Workspace
from lipt.data.inputs.specs import ImageSpec
from lipt.data.targets.kinds import TargetKind

# Share of the time for duplicates in which all examples are read.
_LOOKING = 0.2


def matches_of(workspace: Workspace, cpu_threads: int) -> Matches:
    """The data set's duplicates, found once: near ones of images, equal ones of other examples."""
    dataset = workspace.dataset

    def compute() -> Matches:
        looking, num_examples = (
            workspace.progress("looking at all examples", CallPart.COPIES, share=_LOOKING),
            len(dataset),
        )
        if not isinstance(dataset.inputs, ImageSpec):
            digests = list[bytes]()
            for rows in row_blocks(num_examples, dataset.inputs.num_bytes):
                values = dataset.raw_values(torch.arange(rows.start, rows.stop))
                digests += [hashlib.sha256(row).digest() for row in values]
                looking(rows.stop, num_examples)
            return find_matches(digests, None)
        pictures = Pictures.of(dataset.images, num_examples, on_progress=looking)
        return find_matches(
            pictures.digests,
            pictures if are_pictures(dataset.inputs) else None,
            on_progress=workspace.progress(
                "looking for near-duplicates", CallPart.COPIES, _LOOKING, 1 - _LOOKING
            ),
        )

    depends_on = (dataset.fingerprint, dataset.inputs, cpu_threads)
    with computation(cpu_threads):
        return workspace.cached(Key(Matches, "pictures", depends_on), compute)


def duplicates_of(workspace: Workspace, cpu_threads: int, ids: Tensor) -> Tensor:
    """Whether each example duplicates one of these; N bool."""
    group_N = matches_of(workspace, cpu_threads).duplicate_group_N
    return torch.isin(group_N, group_N[ids])


def diagnose(workspace: Workspace, sources: Sources, proxy: Proxy) -> DiagnosisFile:
    """Diagnose by a proxy's signals; ProxyError if its head learned from the same labels.

    A user's own class probabilities replace the head's for the label errors. Texts have
    completions that look wrong instead.
    """
    if proxy.is_own_head:
        raise ProxyError(
            f"the proxy {proxy} cannot diagnose: its head has learned from the "
            "labels in question. Choose auto or ridge:..., such as ridge:patches."
        )
    config, dataset = sources.config, workspace.dataset
    if dataset.target.kind is TargetKind.TOKENS:
        copies = matches_of(workspace, config.evaluation_threads)
        return diagnose_completions(workspace, sources, proxy, copies)
    num_classes, generator = len(dataset.class_names), partial(derive_generator, config.seed)
    signals = proxied_signals(workspace, sources, proxy)
    labels_N, features_ND, facts = signals.labels_N, signals.features_ND, signals.facts or {}
    with computation(config.evaluation_threads):
        rated = with_probabilities(workspace, sources, signals)
        if signals.kind is TargetKind.CLASS:
            errors = find_label_errors(rated)
        else:
            errors = fit_of_targets(rated, num_classes)
        copies = matches_of(workspace, config.evaluation_threads)
        duplicates = find_duplicates(labels_N, errors.quality_N, copies)
        outliers = find_outliers(features_ND, generator=generator("diagnosis: outliers"))
        redundant = redundancy(
            features_ND,
            labels_N,
            num_classes,
            generator=generator("diagnosis: redundancy"),
            on_progress=workspace.progress("measuring redundancy", CallPart.FINDINGS, share=0.5),
        )
        curve = learning_curve(
            features_ND,
            labels_N,
            num_classes,
            float(facts["accuracy"]),
            head_targets=HeadTargets.of(dataset),
            generator=generator("diagnosis: learning curve"),
            on_progress=workspace.progress(
                "measuring a learning curve", CallPart.FINDINGS, 0.5, share=0.5
            ),
        )
    every_N = dataset.rows.labels_N
    findings = DataFindings(errors, duplicates, outliers, curve)
    return diagnosis_of(
        findings.by_id(dataset.id_mapping, every_N),
        labels_N=every_N,
        class_names=dataset.class_names,
        kind=signals.kind,
        proxy=with_features_as_text(rated.facts or {}),
        redundancy=redundant,
    )
