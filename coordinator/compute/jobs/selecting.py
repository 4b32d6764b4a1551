"""Selection job: signals of some weights (computed once, kept on disk), then a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import nn

from lipt.common.blobs.name import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.data.numbering import Numbering
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.determinism.seeding import derive_seed
from lipt.common.errors import SignalsError
from lipt.common.inputs.formats import InputFormat
from lipt.common.observability.tracing import span
from lipt.common.process.devices import device_name
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.copies import copies_of
from lipt.coordinator.compute.jobs.model_signals import model_norms
from lipt.coordinator.compute.jobs.proxy_features import ProxyQuestion
from lipt.coordinator.compute.jobs.proxying import Facts, proxied_features, proxied_signals
from lipt.coordinator.compute.jobs.scanning import scanned_signals
from lipt.coordinator.compute.jobs.trajectories import Trajectories, dynamics_of
from lipt.coordinator.compute.jobs.warming_up import WarmedUp, WarmUpQuestion, warmed_up
from lipt.coordinator.compute.messages import MAX_CHEAP_BYTES, Cost
from lipt.core.proxies.proxy import Proxy
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.strategy import Need
from lipt.core.selection.warm_up_option import WarmUp
from lipt.core.selection.without_labels import Labels
from lipt.core.signals.device import place
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import Signals, labels_only, unlabelled
from lipt.core.signals.user_features import (
    UserFeatures,
    features_of_pairs,
)


@dataclass(frozen=True)
class Selected:
    """A subset's bytes, stored: indices as little-endian int64, ascending, then float32 weights."""

    blob: BlobName
    device: str
    num_examples: int
    # Why there are fewer than the budget; empty where there are not.
    stopped_early: str = ""
    # What the strategy has found in the data and decided, as JSON.
    findings: Mapping[str, Any] = field(default_factory=dict)
    # Of the proxy, for the manifest; none where signals were theta_p's own, or not looked at.
    proxy: Mapping[str, Any] | None = None
    # What the job took, without its turn in the queue.
    seconds: float = field(default=0.0, compare=False)
    # What an ordinary warm-up took when it was trained; None where there was none.
    warm_up_seconds: float | None = None
    # Of these, those of this job.
    warming_seconds: float = 0.0


@dataclass(frozen=True)
class SelectSubset:
    """Choose `budget` examples by a strategy on given weights."""

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
    # What each of those learners was trained on, for strategies that ask the others about it.
    shards: tuple[BlobName, ...] | None = None
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

    @property
    def cost(self) -> Cost:
        """Whether it is done in a moment, where its signals are kept."""
        strategy = find_strategy(self.strategy)
        large = self.features is not None and self.features.size_bytes > MAX_CHEAP_BYTES
        if large or not strategy.is_linear or WarmUp.among(dict(self.options)) is not None:
            return Cost.DEAR
        needs = strategy.needs_for(strategy.parse_options(dict(self.options)))
        if Need.PAIRED_FEATURES in needs and self.features is None:
            # They are the data set's own.
            return Cost.DEAR
        return Cost.SIGNALS if needs or self.features is not None else Cost.LABELS

    def run(self, context: Context) -> Selected:
        """Compute, select and store."""
        started = monotonic()
        strategy = find_strategy(self.strategy)
        options = strategy.parse_options(dict(self.options))
        needs = set(strategy.needs_for(options))
        with span("signals", strategy=self.strategy):
            warmed = self._warmed_up(context, needs)
            if self.labels is None:
                signals, facts = self._signals(context, needs, warmed)
            else:
                signals, facts = self._unlabelled(context, needs)
        context.report(f"selecting by {self.strategy}", 0, 1)
        # What is drawn from labels alone is the same everywhere: no device has to be woken up.
        device = torch.device("cpu") if self.cost is Cost.LABELS else context.device
        with (
            pinned_kernels(self.config.evaluation_threads),
            span("select", strategy=self.strategy, budget=self.budget),
        ):
            chosen = select(
                strategy,
                place(signals, device),
                self.budget,
                balanced=self.balanced,
                seed=derive_seed(self.config.seed, "selection"),
                options=options,
            )
        if not len(chosen.indices_K):
            raise SignalsError(
                f"strategy {self.strategy!r} chooses nothing for a budget of {self.budget}: "
                f"{chosen.stopped_early} Select on other weights, or by another strategy."
            )
        indices_K: np.ndarray = context.numbering.ids(chosen.indices_K).numpy().astype("<i8")
        weights_K: np.ndarray = chosen.weights_K.numpy().astype("<f4")
        blob = context.blobs.put_bytes(b"".join((indices_K.data, weights_K.data)))
        return Selected(
            blob,
            device_name(device),
            num_examples=len(indices_K),
            stopped_early=chosen.stopped_early,
            findings=_by_id(chosen.findings, context.numbering),
            proxy=facts,
            seconds=monotonic() - started,
            warm_up_seconds=None if warmed is None else warmed.seconds,
            warming_seconds=0.0 if warmed is None else warmed.spent_seconds,
        )

    def _warmed_up(self, context: Context, needs: set[Need]) -> WarmedUp | None:
        warm_up = WarmUp.among(dict(self.options))
        if warm_up is None:
            return None
        return warmed_up(
            context,
            WarmUpQuestion(self.config, self.inputs, self.weights, warm_up),
            signals=bool(needs & {Need.SIGNALS, Need.VALIDATION, Need.FEATURES}),
            gradient_norms=Need.GRADIENT_NORMS in needs,
        )

    def _signals(
        self, context: Context, needs: set[Need], warmed: WarmedUp | None
    ) -> tuple[Signals, Facts | None]:
        # Before the model's pass over the data: they are refused for less.
        own = self._user_features(context)
        if own is None and Need.PAIRED_FEATURES in needs:
            own = features_of_pairs(context.dataset)
        if warmed is not None:
            signals, facts = warmed.signals, None
        else:
            signals, facts = self._judged(context, needs, own_features=own is not None)
        if own is not None:
            signals = replace(signals, paired_features_NP=own.paired_features_NP)
            # A proxy's features are what it was asked for; pairs are those of one file.
            if facts is None or Need.PAIRED_FEATURES in needs:
                signals = replace(signals, features_ND=own.features_ND)
        if Need.DYNAMICS in needs and self.trajectories is not None:
            signals = replace(signals, dynamics=self._dynamics(context, self.trajectories))
        if Need.COPIES in needs:
            signals = self._with_copies(context, signals)
        if Need.VALIDATION in needs:
            ids = context.split(self.config).validation_ids
            signals = replace(signals, validation=signals.take(ids) if len(ids) else None)
        return signals, facts

    def _judged(
        self, context: Context, needs: set[Need], *, own_features: bool
    ) -> tuple[Signals, Facts | None]:
        """What the weights, or a proxy, make of the examples; labels where nobody looks."""
        signals, facts = self._labels_only(context), None
        looks = bool(needs & {Need.SIGNALS, Need.VALIDATION, Need.FEATURES})
        errors = bool(needs & {Need.SIGNALS, Need.VALIDATION})
        if self.proxy is not None and looks:
            signals, facts = proxied_signals(context, self._question(Proxy.parse(self.proxy)))
        elif errors or (Need.FEATURES in needs and not own_features):
            passed = partial(scanned_signals, weights=self.weights)
            signals = self._cached(context, "signals", passed)
        if Need.GRADIENT_NORMS in needs:
            norms = self._cached(context, "gradients", model_norms)
            signals = replace(signals, gradient_norms_N=norms.gradient_norms_N)
        return signals, facts

    def _unlabelled(self, context: Context, needs: set[Need]) -> tuple[Signals, Facts | None]:
        """What there is where no label may be looked at; whatever else is needed stays missing."""
        own = self._user_features(context)
        signals, facts = unlabelled(len(context.dataset)), None
        if self.proxy is not None:
            signals, facts = proxied_features(context, self._question(Proxy.parse(self.proxy)))
        elif own is not None:
            signals = replace(signals, features_ND=own.features_ND)
        if Need.COPIES in needs:
            signals = self._with_copies(context, signals)
        return signals, facts

    def _with_copies(self, context: Context, signals: Signals) -> Signals:
        copies = copies_of(context, self.config.evaluation_threads)
        return replace(signals, pictures_N=copies.pictures_N)

    def _dynamics(self, context: Context, trajectories: Trajectories) -> Dynamics:
        if self.shards is None:
            raise ValueError("the learners are to be asked, but not what they were trained on")
        return dynamics_of(context, self.config, self.inputs, trajectories, self.shards)

    def _question(self, proxy: Proxy) -> ProxyQuestion:
        return ProxyQuestion(
            self.config,
            self.inputs,
            proxy,
            self.weights,
            self.features,
            self.trajectories,
            self.initial,
        )

    def _user_features(self, context: Context) -> UserFeatures | None:
        if self.features is None:
            return None
        context.report("reading the features", 0, 1)
        return context.user_features(self.features)

    def _cached(
        self,
        context: Context,
        kind: str,
        compute: Callable[[Context, RunConfig, InputFormat, nn.Module], Signals],
    ) -> Signals:
        depends_on = (
            self.weights.sha256,
            context.dataset.fingerprint,
            self.config.model,
            self.inputs,
            self.config.evaluation_threads,
            str(context.device),
        )
        return context.cached(
            kind,
            depends_on,
            load=Signals.load,
            compute=lambda: compute(
                context,
                self.config,
                self.inputs,
                context.loaded_model(self.config, self.weights),
            ),
        )

    def _labels_only(self, context: Context) -> Signals:
        return labels_only(context.dataset.labels_N, context.dataset.target.kind)


def _by_id(findings: Mapping[str, Any], numbering: Numbering) -> Mapping[str, Any]:
    """What a strategy has found, with ids in the place of places."""
    left_out = findings.get("left_out")
    if not numbering.left_out or left_out is None:
        return findings
    places = torch.tensor(left_out["least_trusted_ids"], dtype=torch.int64)
    ids = numbering.ids(places).tolist()
    return {**findings, "left_out": {**left_out, "least_trusted_ids": ids}}
