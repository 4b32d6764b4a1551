"""Choosing: the signals that a strategy asks for, of some weights, and then the strategy.

Shapes: K chosen examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.data.dataset import Numbering
from lipt.common.determinism import derive_seed, pinned_kernels
from lipt.common.errors import SignalsError
from lipt.common.inputs.specs import InputFormat
from lipt.common.observability.tracing import span
from lipt.common.process.devices import device_name, versions
from lipt.common.subsets import Examples
from lipt.core.proxies.proxy import SOUP, Proxy
from lipt.core.results import Trajectories
from lipt.core.selection.options import WarmUp
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.request_rules import Labels
from lipt.core.selection.select import select
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategy import Need
from lipt.core.signals.signals import Signals, labels_only, place, unlabelled
from lipt.core.signals.stored import UserFeatures, features_of_pairs
from lipt.core.soft_labels import SoftLabels, soft_labels
from lipt.core.stages.diagnosis import copies_of
from lipt.core.stages.proxy import Facts, ProxyQuestion, proxied_features, proxied_signals
from lipt.core.stages.warm_up import (
    ComputeSignals,
    WarmedUp,
    WarmUpQuestion,
    dynamics_of,
    model_norms,
    model_signals,
    warmed_up,
)
from lipt.core.workspace import Workspace

# Needs that a proxy answers.
OF_A_PROXY = frozenset({Need.SIGNALS, Need.VALIDATION, Need.FEATURES})


@dataclass(frozen=True)
class Question:
    """The subset that is wanted: `budget` examples by a strategy on given weights.

    weights: theta_p or the user's own; theta* where an ordinary warm-up begins with it.
    features: the user's own, in place of the model's.
    trajectories: the learners, for strategies and proxies that use them.
    preset: that gave the options, for the record.
    proxy: that signals are computed with; None for the weights with their own head.
    backbone: identity of the operator's network, where the proxy may use it.
    labels: `none` where no label may enter the choice.
    initial: theta*, where the proxy may use it.
    teacher: the proxy whose head gives soft labels, where they are wanted.
    """

    config: RunConfig
    inputs: InputFormat
    weights: BlobName
    strategy: str
    budget: int
    balanced: bool
    options: tuple[tuple[str, str], ...]
    features: BlobName | None = None
    trajectories: Trajectories | None = None
    preset: str | None = None
    proxy: str | None = None
    backbone: str | None = None
    labels: Labels | None = None
    initial: BlobName | None = None
    teacher: str | None = None

    @property
    def judged_by(self) -> str | None:
        """The proxy; None where neither a head nor a soup is used."""
        return self.proxy or (str(SOUP) if self.labels is None else None)

    @property
    def needs(self) -> frozenset[Need]:
        """The inputs of the strategy with these options."""
        strategy = find_strategy(self.strategy)
        return strategy.needs_for(strategy.parse_options(dict(self.options)))


@dataclass(frozen=True)
class Chosen:
    """The answer to a question.

    selection: ids, ascending, and their weights.
    device: that the strategy ran on.
    proxy: facts of the proxy, for a manifest; None where there was none.
    warmed: the ordinary warm-up's costs, where there was one.
    soft: soft labels of the chosen examples, where they are wanted.
    """

    selection: Selection
    device: str
    proxy: Facts | None = None
    warmed: WarmedUp | None = None
    soft: SoftLabels | None = None

    @property
    def examples(self) -> Examples:
        """Ids, weights and soft labels, of which a subset's digest is taken."""
        return Examples(
            self.selection.indices_K.to(torch.int64).numpy(),
            self.selection.weights_K.float().numpy(),
            None if self.soft is None else self.soft.probabilities_KC.numpy(),
        )


def told_of(question: Question, chosen: Chosen) -> dict[str, Any]:
    """The manifest of a question and its answer."""
    return {
        "strategy": question.strategy,
        "preset": question.preset,
        "options": dict(question.options),
        "labels": str(question.labels or Labels.GIVEN),
        "proxy": {
            "proxy": question.judged_by,
            **({"backbone": question.backbone} if question.backbone else {}),
            **(chosen.proxy or {}),
        },
        "soft_labels": None if chosen.soft is None else chosen.soft.facts,
        "budget": question.budget,
        "balanced": question.balanced,
        "stopped_early": chosen.selection.stopped_early,
        "findings": dict(chosen.selection.findings),
        "device": chosen.device,
        "versions": versions(),
    }


def choose(
    workspace: Workspace, question: Question, *, compute: ComputeSignals = model_signals
) -> Chosen:
    """Compute the strategy's inputs, and select.

    Raises:
        SignalsError: the strategy chooses nothing, or the model's outputs are not finite.
    """
    strategy, needs = find_strategy(question.strategy), question.needs
    with span("signals", strategy=question.strategy):
        inputs = _Inputs(workspace, question, needs, compute)
        signals, facts, warmed = inputs.computed()
    workspace.report(f"selecting by {question.strategy}", 0, 1)
    # What is drawn from labels alone is the same everywhere: no device has to be woken up.
    alone = not needs and question.features is None
    device = torch.device("cpu") if alone else workspace.device
    with (
        pinned_kernels(question.config.evaluation_threads),
        span("select", strategy=question.strategy, budget=question.budget),
    ):
        chosen = select(
            strategy,
            place(signals, device),
            question.budget,
            balanced=question.balanced,
            seed=derive_seed(question.config.seed, "selection"),
            options=strategy.parse_options(dict(question.options)),
        )
    if not len(chosen.indices_K):
        raise SignalsError(
            f"strategy {question.strategy!r} chooses nothing for a budget of "
            f"{question.budget}: {chosen.stopped_early} Select on other weights, or by "
            "another strategy."
        )
    soft = inputs.soft_labels(chosen.indices_K)
    ids_K = workspace.numbering.ids(chosen.indices_K)
    findings = _by_id(chosen.findings, workspace.numbering)
    selection = replace(chosen, indices_K=ids_K, findings=findings)
    return Chosen(selection, device_name(device), facts, warmed, soft)


@dataclass(frozen=True)
class _Inputs:
    workspace: Workspace
    question: Question
    needs: frozenset[Need]
    compute: ComputeSignals

    def computed(self) -> tuple[Signals, Facts | None, WarmedUp | None]:
        question, workspace, dataset = self.question, self.workspace, self.workspace.dataset
        warm_up = WarmUp.among(dict(question.options))
        needs_model = bool(self.needs & OF_A_PROXY)
        warmed, facts = None, None
        if warm_up is not None:
            warmed = warmed_up(
                workspace,
                WarmUpQuestion(question.config, question.inputs, question.weights, warm_up),
                signals=needs_model,
                gradient_norms=Need.GRADIENT_NORMS in self.needs,
            )
        # Before the model's pass over the data: they are refused for less.
        own = self._own_features()
        if warmed is not None:
            signals = warmed.signals
        elif question.labels is not None:
            signals = unlabelled(len(dataset))
            if question.proxy is not None:
                signals, facts = proxied_features(workspace, self._proxy_question(question.proxy))
        else:
            signals = labels_only(dataset.labels_N, dataset.target.kind)
            if question.proxy is not None and needs_model:
                signals, facts = proxied_signals(workspace, self._proxy_question(question.proxy))
            elif needs_model and (own is None or self.needs & {Need.SIGNALS, Need.VALIDATION}):
                signals = self._cached("signals", self.compute)
            if Need.GRADIENT_NORMS in self.needs:
                norms_N = self._cached("gradients", model_norms).gradient_norms_N
                signals = replace(signals, gradient_norms_N=norms_N)
        return self._beside(signals, own, facts), facts, warmed

    def soft_labels(self, places_K: Tensor) -> SoftLabels | None:
        if self.question.teacher is None:
            return None
        teacher = self._proxy_question(self.question.teacher)
        signals, facts = proxied_signals(self.workspace, teacher)
        with pinned_kernels(self.question.config.evaluation_threads):
            return soft_labels(signals, facts, places_K.cpu(), seed=self.question.config.seed)

    def _own_features(self) -> UserFeatures | None:
        features, labels = self.question.features, self.question.labels
        if features is not None:
            self.workspace.report("reading the features", 0, 1)
            return self.workspace.user_features(features)
        paired = Need.PAIRED_FEATURES in self.needs and labels is None
        return features_of_pairs(self.workspace.dataset) if paired else None

    def _beside(self, signals: Signals, own: UserFeatures | None, facts: Facts | None) -> Signals:
        config, workspace = self.question.config, self.workspace
        if own is not None:
            paired = Need.PAIRED_FEATURES in self.needs
            if self.question.labels is None:
                signals = replace(signals, paired_features_NP=own.paired_features_NP)
            # A proxy's features are the ones asked for; pairs are those of one file.
            if facts is None or paired:
                signals = replace(signals, features_ND=own.features_ND)
        if Need.DYNAMICS in self.needs and self.question.trajectories is not None:
            inputs, trajectories = self.question.inputs, self.question.trajectories
            dynamics = dynamics_of(workspace, config, inputs, trajectories)
            signals = replace(signals, dynamics=dynamics)
        if Need.COPIES in self.needs:
            copies = copies_of(workspace, config.evaluation_threads)
            signals = replace(signals, pictures_N=copies.pictures_N)
        if Need.VALIDATION in self.needs:
            ids = workspace.split(config).validation_ids
            signals = replace(signals, validation=signals.take(ids) if len(ids) else None)
        return signals

    def _proxy_question(self, proxy: str) -> ProxyQuestion:
        asked = self.question
        return ProxyQuestion(
            asked.config,
            asked.inputs,
            Proxy.parse(proxy),
            asked.weights,
            asked.features,
            asked.trajectories,
            asked.initial,
        )

    def _cached(self, kind: str, compute: ComputeSignals) -> Signals:
        workspace, question = self.workspace, self.question
        config, inputs, weights = question.config, question.inputs, question.weights
        depends_on = (
            weights.sha256,
            workspace.dataset.fingerprint,
            config.model,
            inputs,
            config.evaluation_threads,
            str(workspace.device),
        )
        return workspace.cached(
            kind,
            depends_on,
            load=Signals.load,
            compute=lambda: compute(
                workspace, config, inputs, workspace.loaded_model(config, weights)
            ),
        )


def _by_id(findings: Mapping[str, Any], numbering: Numbering) -> Mapping[str, Any]:
    left_out = findings.get("left_out")
    if not numbering.left_out or left_out is None:
        return findings
    places = torch.tensor(left_out["least_trusted_ids"], dtype=torch.int64)
    ids = numbering.ids(places).tolist()
    return {**findings, "left_out": {**left_out, "least_trusted_ids": ids}}
