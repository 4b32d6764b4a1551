"""Mixture: the shares that suit a target, what they are worth, and findings on the data.

Library and service call the same functions, so equal requests have equal results.

Shapes: N target examples, K sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from lipt.common.config.run_config import RunConfig
from lipt.common.process.devices import versions_on
from lipt.common.text import listed
from lipt.core.mixture.check import CHECK_STEPS, MixtureTraining
from lipt.core.mixture.comparison import MERGED, SIZE, UNIFORM, compare
from lipt.core.mixture.learning import Learned, TargetedPool
from lipt.core.mixture.result import MixtureOutcome, MixtureResult
from lipt.core.mixture.verdict import judge
from lipt.core.stages.diagnosis import duplicates_of
from lipt.core.workspace import Workspace
from lipt.data.targets.kinds import TargetKind

# Fewer examples say little. A smaller share is hardly one.
_FEW, _HARDLY = 30, 0.05
_NUM_CHECKS = 3


def on_leaks(pool: TargetedPool, leaked_N: Tensor, *, dropped: bool) -> list[str]:
    """A sentence on examples that duplicate the target's, if there are any."""
    leaks = {name: int(leaked_N[own].sum()) for name, own in pool.source_ids.items()}
    shown = [f"{count} of {name}" for name, count in leaks.items() if count]
    action = "left out" if dropped else "kept: drop_duplicates=True leaves them out"
    sentence = f"Examples that duplicate the target, {listed(shown, 5)}, are {action}."
    return [sentence] if shown else []


def findings_on(pool: TargetedPool, config: RunConfig) -> list[str]:
    """Sentences on small sources and targets, and on classes that are missing."""
    findings = list[str]()
    shard = config.learners.num_minibatches * config.learners.batch_size
    if small := [f"{name} ({size})" for name, size in pool.sizes.items() if size < shard]:
        findings.append(
            f"Sources with fewer examples than the {shard} of a learner are drawn from again: "
            f"{listed(small, 5)}."
        )
    if (num_target := len(pool.target_ids)) < _FEW:
        findings.append(f"The target has only {num_target} examples, so its intervals are wide.")
    if pool.num_given > num_target:
        findings.append(f"{num_target:,} of the target's {pool.num_given:,} examples are used.")
    return [*findings, *_on_classes(pool)]


def alone(pool: TargetedPool, config: RunConfig, findings: Sequence[str]) -> MixtureResult:
    """The result for one source, for which nothing is fitted."""
    zero = torch.zeros(1)
    return MixtureResult(
        dict.fromkeys(pool.names, 1.0),
        dict.fromkeys(pool.names, (1.0, 1.0)),
        {},
        str(judge(zero, zero, torch.ones(1), pool.names)),
        tuple(findings),
        _manifest(pool, config),
        pool.fingerprint,
        _rows(pool),
    )


def fit_mixture(
    workspace: Workspace,
    pool: TargetedPool,
    config: RunConfig,
    learned: Learned,
    findings: Sequence[str],
    *,
    check: bool = False,
) -> tuple[MixtureResult, Tensor]:
    """The shares with which learners merge best on the target, and their weights; K float64.

    With `check`, three models are trained on each of the mixture, equal shares and sizes.
    """
    began, names, ids = monotonic(), pool.names, list(pool.source_ids.values())
    workspace.report("fitting the mixture", 0, 0)
    fitted = learned.merged.fit(seed=config.seed)
    compared = compare(pool, config, learned, fitted)
    real = dict[str, tuple[float, ...]]()
    if check:
        workspace.report("training on mixtures", 0, 0)
        training = MixtureTraining(
            workspace, config, learned.inputs, learned.initial, ids, CHECK_STEPS
        )
        shares = {name: compared[name].shares_K for name in (MERGED, UNIFORM, SIZE)}
        real = training.accuracies(shares, pool.target_ids, range(_NUM_CHECKS))
    gains_N = compared[UNIFORM].losses_N - compared[MERGED].losses_N
    bounds = zip(names, fitted.low_K.tolist(), fitted.high_K.tolist(), strict=True)
    manifest = {
        "readiness": [asdict(test) for test in learned.readiness],
        "strength": fitted.strength,
        "versions": versions_on(workspace.device),
        "fit_seconds": monotonic() - began,
    }
    result = replace(
        alone(pool, config, (*findings, *_on_learners(names, learned, fitted.weights_K))),
        weights=_named(names, fitted.weights_K),
        intervals={name: (low, high) for name, low, high in bounds},
        outcomes={
            name: MixtureOutcome(
                _named(names, result.shares_K),
                result.losses_N.mean().item(),
                result.score,
                real.get(name, ()),
            )
            for name, result in compared.items()
        },
        verdict=str(judge(gains_N, learned.crossed_N, fitted.weights_K, names)),
    )
    return replace(result, manifest={**result.manifest, **manifest}), fitted.weights_K


def mixture_of(
    workspace: Workspace, pool: TargetedPool, config: RunConfig, learned: Learned
) -> MixtureResult:
    """The mixture and all findings, as `lipt.mix` has them for the same learners."""
    leaked_N = duplicates_of(workspace, 1, pool.target_ids)
    findings = on_leaks(pool, leaked_N, dropped=False) + findings_on(pool, config)
    if len(pool.names) == 1:
        return alone(pool, config, findings)
    return fit_mixture(workspace, pool, config, learned, findings)[0]


def _named(names: Sequence[str], shares_K: Tensor) -> dict[str, float]:
    return dict(zip(names, shares_K.tolist(), strict=True))


def _manifest(pool: TargetedPool, config: RunConfig) -> dict[str, Any]:
    return {
        "seed": config.seed,
        "config": config.model_dump(mode="json"),
        "sources": dict(pool.sizes),
        "target_examples": len(pool.target_ids),
        "fingerprint_with_target": pool.dataset.fingerprint,
    }


def _rows(pool: TargetedPool) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """Each source's ids as ranges [start, stop)."""
    by_source = {}
    for name, positions in pool.source_ids.items():
        ids = pool.dataset.id_mapping.ids(positions)
        breaks = torch.nonzero(ids.diff() != 1).flatten() + 1
        parts = ids.tensor_split(breaks)
        by_source[name] = tuple((int(part[0]), int(part[-1]) + 1) for part in parts if len(part))
    return by_source


def _on_classes(pool: TargetedPool) -> list[str]:
    dataset = pool.dataset
    if dataset.target.kind is not TargetKind.CLASS:
        return []
    labels_N, names = dataset.labels_N, dataset.class_names
    classes, findings = set(labels_N[pool.target_ids].tolist()), list[str]()
    if len(classes) == 1:
        (label,) = classes
        findings.append(f"All of the target's examples are of the class {names[label]}.")
    for source, own in pool.source_ids.items():
        if (lacks := sorted(classes - set(labels_N[own].tolist()))) and len(own):
            shown = listed([names[label] for label in lacks], 5)
            findings.append(f"{source} has no example of {len(lacks)} of its classes: {shown}.")
    return findings


def _on_learners(names: Sequence[str], learned: Learned, shares_K: Tensor) -> list[str]:
    merged, last = learned.merged, learned.readiness[-1]
    before = merged.initial_losses().mean()
    worse = [
        name
        for name, share, corner_K in zip(names, shares_K, torch.eye(len(names)), strict=True)
        if share < _HARDLY and merged.losses_at(corner_K).mean() > before
    ]
    findings = list[str]()
    if worse:
        findings.append(
            f"Learners of {listed(worse, 5)} make the target worse, so they get hardly a share: "
            "their inputs differ from the target's, or their labels are wrong."
        )
    if not last.is_ready:
        findings.append(
            f"The shares may be wrong: {last}. Give a trained model, more data, or more "
            "initialization.steps."
        )
    return findings
