"""Choosing: the signals that a strategy asks for, of some weights, and then the strategy.

Shapes: K chosen examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.request_rules import Labels
from lipt.core.selection.select import select
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategy import Need
from lipt.core.selection.warm_up_option import WarmUp
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import Signals, labels_only, place, unlabelled
from lipt.core.signals.stored import UserFeatures, features_of_pairs
from lipt.core.soft_labels import SoftLabels, soft_labels
from lipt.core.stages.diagnosis import copies_of
from lipt.core.stages.proxy import Facts, proxied_features, proxied_signals
from lipt.core.stages.proxy_features import ProxyQuestion
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


@dataclass(frozen=True)
class Question:
    """Which subset is wanted: `budget` examples by a strategy on given weights."""

    config: RunConfig
    inputs: InputFormat
    # theta_p or the user's own; theta* where an ordinary warm-up begins with it.
    weights: BlobName
    strategy: str
    budget: int
    balanced: bool
    options: tuple[tuple[str, str], ...]
    # The user's own, in place of the model's.
    features: BlobName | None = None
    # What the learners were on their way, for strategies and proxies that look at it.
    trajectories: Trajectories | None = None
    # What the options were asked for by, for the record.
    preset: str | None = None
    # What signals are computed with, where it is not the weights with their own head.
    proxy: str | None = None
    # What stands for the operator's network, where the proxy may look at it.
    backbone: str | None = None
    # `none` where no label may enter the choice.
    labels: Labels | None = None
    # theta*, where the proxy may look at it.
    initial: BlobName | None = None
    # The proxy whose head gives soft labels, where they are wanted.
    teacher: str | None = None

    @property
    def judged_by(self) -> str | None:
        """The proxy; None where neither a head nor a soup has a say."""
        return self.proxy or (str(SOUP) if self.labels is None else None)

    @property
    def needs(self) -> frozenset[Need]:
        """What the strategy looks at."""
        strategy = find_strategy(self.strategy)
        return strategy.needs_for(strategy.parse_options(dict(self.options)))


@dataclass(frozen=True)
class Chosen:
    """What came of a question.

    Attributes:
        selection: indices, ascending, are ids; and their weights.
        device: what the strategy ran on.
        findings: what the strategy has found in the data and decided, as JSON.
        proxy: facts of the proxy, for a manifest; None where no proxy was looked at.
        warmed: the ordinary warm-up's costs, where there was one.
        soft: soft labels of the chosen examples, where they are wanted.
    """

    selection: Selection
    device: str
    findings: Mapping[str, Any] = field(default_factory=dict)
    proxy: Facts | None = None
    warmed: WarmedUp | None = None
    soft: SoftLabels | None = None

    @property
    def examples(self) -> Examples:
        """Ids, weights and soft labels: what a subset's digest is taken of."""
        return Examples(
            self.selection.indices_K.to(torch.int64).numpy(),
            self.selection.weights_K.float().numpy(),
            None if self.soft is None else self.soft.chances_KC.numpy(),
        )


def told_of(question: Question, chosen: Chosen) -> dict[str, Any]:
    """What a manifest says of a question and what came of it."""
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
        "findings": dict(chosen.findings),
        "device": chosen.device,
        "versions": versions(),
    }


def choose(
    workspace: Workspace, question: Question, *, compute: ComputeSignals = model_signals
) -> Chosen:
    """Compute what the strategy looks at, and select."""
    return _Choosing(workspace, question, compute).run()


@dataclass(frozen=True)
class _Choosing:
    workspace: Workspace
    question: Question
    compute: ComputeSignals

    def run(self) -> Chosen:
        workspace, question = self.workspace, self.question
        strategy = find_strategy(question.strategy)
        needs = set(question.needs)
        with span("signals", strategy=question.strategy):
            warmed = self._warmed_up(needs)
            if question.labels is None:
                signals, facts = self._signals(needs, warmed)
            else:
                signals, facts = self._unlabelled(needs)
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
        soft = self._soft_labels(chosen.indices_K)
        ids_K = workspace.numbering.ids(chosen.indices_K)
        findings = _by_id(chosen.findings, workspace.numbering)
        selection = replace(chosen, indices_K=ids_K, findings=findings)
        return Chosen(selection, device_name(device), findings, facts, warmed, soft)

    def _soft_labels(self, places_K: Tensor) -> SoftLabels | None:
        if self.question.teacher is None:
            return None
        teacher = self._proxy_question(Proxy.parse(self.question.teacher))
        signals, facts = proxied_signals(self.workspace, teacher)
        with pinned_kernels(self.question.config.evaluation_threads):
            return soft_labels(signals, facts, places_K.cpu(), seed=self.question.config.seed)

    def _warmed_up(self, needs: set[Need]) -> WarmedUp | None:
        warm_up = WarmUp.among(dict(self.question.options))
        if warm_up is None:
            return None
        return warmed_up(
            self.workspace,
            WarmUpQuestion(
                self.question.config, self.question.inputs, self.question.weights, warm_up
            ),
            signals=bool(needs & {Need.SIGNALS, Need.VALIDATION, Need.FEATURES}),
            gradient_norms=Need.GRADIENT_NORMS in needs,
        )

    def _signals(self, needs: set[Need], warmed: WarmedUp | None) -> tuple[Signals, Facts | None]:
        # Before the model's pass over the data: they are refused for less.
        own = self._user_features()
        if own is None and Need.PAIRED_FEATURES in needs:
            own = features_of_pairs(self.workspace.dataset)
        if warmed is not None:
            signals, facts = warmed.signals, None
        else:
            signals, facts = self._judged(needs, own_features=own is not None)
        if own is not None:
            signals = replace(signals, paired_features_NP=own.paired_features_NP)
            # A proxy's features are what it was asked for; pairs are those of one file.
            if facts is None or Need.PAIRED_FEATURES in needs:
                signals = replace(signals, features_ND=own.features_ND)
        if Need.DYNAMICS in needs and self.question.trajectories is not None:
            signals = replace(signals, dynamics=self._dynamics(self.question.trajectories))
        if Need.COPIES in needs:
            signals = self._with_copies(signals)
        if Need.VALIDATION in needs:
            ids = self.workspace.split(self.question.config).validation_ids
            signals = replace(signals, validation=signals.take(ids) if len(ids) else None)
        return signals, facts

    def _judged(self, needs: set[Need], *, own_features: bool) -> tuple[Signals, Facts | None]:
        signals, facts = self._labels_only(), None
        looks = bool(needs & {Need.SIGNALS, Need.VALIDATION, Need.FEATURES})
        errors = bool(needs & {Need.SIGNALS, Need.VALIDATION})
        if self.question.proxy is not None and looks:
            signals, facts = proxied_signals(
                self.workspace, self._proxy_question(Proxy.parse(self.question.proxy))
            )
        elif errors or (Need.FEATURES in needs and not own_features):
            signals = self._cached("signals", self.compute)
        if Need.GRADIENT_NORMS in needs:
            norms = self._cached("gradients", model_norms)
            signals = replace(signals, gradient_norms_N=norms.gradient_norms_N)
        return signals, facts

    def _unlabelled(self, needs: set[Need]) -> tuple[Signals, Facts | None]:
        own = self._user_features()
        signals, facts = unlabelled(len(self.workspace.dataset)), None
        if self.question.proxy is not None:
            signals, facts = proxied_features(
                self.workspace, self._proxy_question(Proxy.parse(self.question.proxy))
            )
        elif own is not None:
            signals = replace(signals, features_ND=own.features_ND)
        if Need.COPIES in needs:
            signals = self._with_copies(signals)
        return signals, facts

    def _with_copies(self, signals: Signals) -> Signals:
        copies = copies_of(self.workspace, self.question.config.evaluation_threads)
        return replace(signals, pictures_N=copies.pictures_N)

    def _dynamics(self, trajectories: Trajectories) -> Dynamics:
        return dynamics_of(self.workspace, self.question.config, self.question.inputs, trajectories)

    def _proxy_question(self, proxy: Proxy) -> ProxyQuestion:
        return ProxyQuestion(
            self.question.config,
            self.question.inputs,
            proxy,
            self.question.weights,
            self.question.features,
            self.question.trajectories,
            self.question.initial,
        )

    def _user_features(self) -> UserFeatures | None:
        if self.question.features is None:
            return None
        self.workspace.report("reading the features", 0, 1)
        return self.workspace.user_features(self.question.features)

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

    def _labels_only(self) -> Signals:
        return labels_only(self.workspace.dataset.labels_N, self.workspace.dataset.target.kind)


def _by_id(findings: Mapping[str, Any], numbering: Numbering) -> Mapping[str, Any]:
    left_out = findings.get("left_out")
    if not numbering.left_out or left_out is None:
        return findings
    places = torch.tensor(left_out["least_trusted_ids"], dtype=torch.int64)
    ids = numbering.ids(places).tolist()
    return {**findings, "left_out": {**left_out, "least_trusted_ids": ids}}
