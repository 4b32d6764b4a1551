"""Proxied signals: those of a ridge head on a proxy's features, computed once, kept on disk.

Errors are the calibrated softmax of leave-one-out outputs minus one-hot, features the scaled
ones of the proxy: what every strategy looks at, of a better judge than theta_p. Where it is sure
that labels are wrong, a second head is fitted to those that the first one trusts. Of labels and
numbers errors are the outputs' own residuals.

Shapes: N examples, C classes, D features.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from lipt.common.determinism import derive_generator, pinned_kernels
from lipt.common.signals.blocks import row_blocks
from lipt.common.targets.kinds import TargetKind
from lipt.core.diagnosis.label_errors import find_label_errors, trust_after
from lipt.core.proxies.features import side_by_side
from lipt.core.proxies.proxy import MAX_SAMPLE, Kind, Tried, candidates, choose, passes_of
from lipt.core.proxies.ridge import (
    HeadTargets,
    LeaveOneOut,
    class_weights,
    fit_sharpness,
    leave_one_out,
    scaling_of,
)
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals, unlabelled
from lipt.core.signals.stored import STORAGE_LIMITS, load_tensors, save_tensors
from lipt.core.stages.proxy_features import FeatureMaker, ProxyQuestion
from lipt.core.workspace import Workspace

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Proxied:
    """Signals, and how they came about.

    facts: for a manifest, as JSON.
    """

    signals: Signals
    facts: Facts

    def save(self, path: Path) -> None:
        """Write a safetensors file; readers see all of it or nothing."""
        tensors = {
            "errors_NC": self.signals.errors_NC,
            "features_ND": self.signals.features_ND,
            "labels_N": self.signals.labels_N,
        }
        if self.signals.second_errors_NC is not None:
            tensors["second_errors_NC"] = self.signals.second_errors_NC
        facts = json.dumps(dict(self.facts))
        save_tensors(path, tensors, {"facts": facts, "kind": self.signals.kind.value})

    @classmethod
    def load(cls, path: Path) -> Proxied:
        """Map what `save` wrote into memory."""

        def build(tensors: dict[str, Any], metadata: dict[str, str]) -> Proxied:
            kind = TargetKind(metadata.get("kind", TargetKind.CLASS))
            return cls(Signals(**tensors, kind=kind), json.loads(metadata["facts"]))

        return load_tensors(path, "signals of a proxy", build)


def proxied_signals(workspace: Workspace, question: ProxyQuestion) -> tuple[Signals, Facts]:
    """Signals of a ridge head on the proxy's features, and what a manifest says of them."""
    return _kept("proxied", workspace, question, _compute)


def proxied_features(workspace: Workspace, question: ProxyQuestion) -> tuple[Signals, Facts]:
    """The proxy's features alone, without a head: no label is looked at.

    All examples are of one class, and there are no errors.
    """
    return _kept("features", workspace, question, _compute_features)


def _kept(
    kind: str,
    workspace: Workspace,
    question: ProxyQuestion,
    compute: Callable[[Workspace, ProxyQuestion, FeatureMaker], Proxied],
) -> tuple[Signals, Facts]:
    maker = FeatureMaker(workspace, question)
    maker.require(question.proxy)
    config, proxy = question.config, question.proxy
    soup = config.soup
    statistics = (soup.batch_norm_examples, config.validation)
    depends_on: tuple[object, ...] = (
        str(proxy),
        config.seed,
        workspace.dataset.fingerprint,
        config.evaluation_threads,
        str(workspace.device),
        (question.weights, config.model, question.inputs)
        if proxy.may_use(Kind.SOUP) or proxy.may_use(Kind.LEARNERS)
        else None,
        (question.trajectories, statistics if soup.reestimate_batch_norm else None)
        if proxy.may_use(Kind.LEARNERS)
        else None,
        question.features if proxy.may_use(Kind.USER) else None,
        maker.backbone_identity if proxy.may_use(Kind.BACKBONE) else None,
    )
    if question.initial is not None:
        began = config.initialization.weights_sha256
        depends_on += (question.initial, began, config.model, question.inputs, statistics, soup)
    with pinned_kernels(config.evaluation_threads):
        kept = workspace.cached(
            kind,
            depends_on,
            load=Proxied.load,
            compute=lambda: compute(workspace, question, maker),
        )
    return kept.signals, kept.facts


def _compute(workspace: Workspace, question: ProxyQuestion, maker: FeatureMaker) -> Proxied:
    started = monotonic()
    wanted = question.proxy.features
    possible = candidates(maker.available) if wanted is None else [wanted]
    trials, kinds, tried = None, possible[0], []
    # Of one alone there is nothing to try.
    if len(possible) > 1:
        trials = _Trials.on_a_sample(workspace, maker, possible)
        kinds, tried = choose(trials.tried).features, trials.tried
    labels_N, targets = workspace.dataset.labels_N, HeadTargets.of(workspace.dataset)
    if trials is not None and len(trials.ids_N) == len(labels_N):
        features_ND, head = trials.features_of(kinds), trials.heads[kinds]
    else:
        features_ND = _features_of_all(workspace, maker, kinds)
        head = _head(workspace, maker, features_ND, None, "fitting a ridge head")
    facts = {
        **_facts_of(question, kinds, features_ND),
        "accuracy": head.accuracy,
        "penalty": head.penalty,
        "tried": [one.facts for one in tried],
    }
    if targets is not None:
        signals = _signals_of(targets, features_ND, labels_N, head)
        facts |= {"score": targets.target.kind.score_name, "seconds": monotonic() - started}
        return Proxied(signals, facts)
    sharpness = fit_sharpness(head.outputs_NC, labels_N, class_weights(labels_N))
    signals = _signals(features_ND, labels_N, head, sharpness)
    trust_N = trust_after(find_label_errors(signals), labels_N)
    if trust_N is not None:
        activity = "fitting a second head, to trusted labels"
        second = _head(workspace, maker, features_ND, None, activity, trust_N)
        weights_N = class_weights(labels_N, trust_N)
        second_sharpness = fit_sharpness(second.outputs_NC, labels_N, weights_N)
        second_errors_NC = _errors(second, second_sharpness, labels_N)
        signals = replace(signals, second_errors_NC=second_errors_NC)
        facts["second"] = {"accuracy": second.accuracy, "sharpness": second_sharpness}
    facts |= {
        "sharpness": sharpness,
        "distrusted": 0 if trust_N is None else int((trust_N < 1).sum()),
        "seconds": monotonic() - started,
    }
    return Proxied(signals, facts)


def _compute_features(
    workspace: Workspace, question: ProxyQuestion, maker: FeatureMaker
) -> Proxied:
    started = monotonic()
    kinds = question.proxy.features
    if not kinds:
        raise ValueError(f"the proxy {question.proxy} names no features")
    features_ND = _features_of_all(workspace, maker, kinds)
    signals = unlabelled(len(features_ND))
    _scale(features_ND, signals.labels_N)
    facts = {**_facts_of(question, kinds, features_ND), "seconds": monotonic() - started}
    return Proxied(replace(signals, features_ND=features_ND), facts)


def _features_of_all(workspace: Workspace, maker: FeatureMaker, kinds: tuple[Kind, ...]) -> Tensor:
    return side_by_side(
        [maker.extractor(kind) for kind in kinds],
        workspace.dataset,
        torch.arange(len(workspace.dataset)),
        on_progress=workspace.progress(f"computing features ({'+'.join(kinds)})"),
    )


def _facts_of(question: ProxyQuestion, kinds: tuple[Kind, ...], features_ND: Tensor) -> Facts:
    return {
        "proxy": str(question.proxy),
        "features": "+".join(kinds),
        "num_features": features_ND.shape[1],
    }


@dataclass(frozen=True)
class _Trials:
    ids_N: Tensor
    features: dict[Kind, Tensor]
    heads: dict[tuple[Kind, ...], LeaveOneOut]
    tried: list[Tried]

    @classmethod
    def on_a_sample(
        cls, workspace: Workspace, maker: FeatureMaker, possible: Sequence[tuple[Kind, ...]]
    ) -> _Trials:
        dataset = workspace.dataset
        generator = derive_generator(maker.question.config.seed, "proxy sample")
        ids_N = torch.randperm(len(dataset), generator=generator)[:MAX_SAMPLE].sort().values
        trials = cls(ids_N, {}, {}, [])
        activity = "trying proxies on a sample"
        for kinds in possible:
            for kind in kinds:
                if kind not in trials.features:
                    trials.features[kind] = side_by_side(
                        [maker.extractor(kind)],
                        dataset,
                        ids_N,
                        on_progress=workspace.progress(activity),
                    )
            features_ND = trials.features_of(kinds)
            head = _head(workspace, maker, features_ND, ids_N, activity)
            trials.heads[kinds] = head
            price = passes_of(kinds, maker.num_learners)
            trials.tried.append(Tried(kinds, head.accuracy, price))
        return trials

    def features_of(self, kinds: tuple[Kind, ...]) -> Tensor:
        return torch.cat([self.features[kind] for kind in kinds], dim=1)


def _head(
    workspace: Workspace,
    maker: FeatureMaker,
    features_ND: Tensor,
    some: Tensor | None,
    activity: str,
    trust_N: Tensor | None = None,
) -> LeaveOneOut:
    device, dataset = workspace.device, workspace.dataset
    ids_N = torch.arange(len(dataset)) if some is None else some
    wanted = HeadTargets.of(dataset)
    head = leave_one_out(
        features_ND.to(device),
        dataset.labels_N[ids_N].to(device),
        len(dataset.class_names),
        generator=derive_generator(maker.question.config.seed, "ridge sample"),
        trust_N=None if trust_N is None else trust_N.to(device),
        wanted=None if wanted is None else wanted.take(ids_N).to(device),
        on_progress=workspace.progress(activity),
    )
    return LeaveOneOut(head.outputs_NC.cpu(), head.accuracy, head.penalty, head.accuracies)


def _signals(features_ND: Tensor, labels_N: Tensor, head: LeaveOneOut, sharpness: float) -> Signals:
    _scale(features_ND, labels_N)
    return Signals(_errors(head, sharpness, labels_N), features_ND, labels_N, has_bias=True)


def _signals_of(
    wanted: HeadTargets, features_ND: Tensor, labels_N: Tensor, head: LeaveOneOut
) -> Signals:
    _scale(features_ND, torch.zeros_like(labels_N))
    num_examples, num_outputs = head.outputs_NC.shape
    dtype = STORAGE_LIMITS.error_dtype(num_examples * num_outputs)
    errors_NC = torch.empty(num_examples, num_outputs, dtype=dtype)
    for rows in row_blocks(num_examples, 8 * num_outputs):
        errors_NC[rows] = wanted.errors(head.outputs_NC[rows], rows).to(dtype)
    return Signals(errors_NC, features_ND, labels_N, kind=wanted.target.kind)


def _scale(features_ND: Tensor, labels_N: Tensor) -> None:
    scaling = scaling_of(features_ND, class_weights(labels_N))
    for rows in row_blocks(len(features_ND), 8 * features_ND.shape[1]):
        features_ND[rows] = scaling.apply(features_ND[rows]).to(features_ND.dtype)


def _errors(head: LeaveOneOut, sharpness: float, labels_N: Tensor) -> Tensor:
    num_examples, num_classes = head.outputs_NC.shape
    dtype = STORAGE_LIMITS.error_dtype(num_examples * num_classes)
    errors_NC = torch.empty(num_examples, num_classes, dtype=dtype)
    for rows in row_blocks(num_examples, 8 * num_classes):
        logits_BC = head.outputs_NC[rows].double() * sharpness
        errors_NC[rows] = errors_of(logits_BC, labels_N[rows]).to(dtype)
    return errors_NC
