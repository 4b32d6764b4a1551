"""Features of a proxy, and heads on them.

Shapes: N examples, B of a block, M of a sample, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.errors import ProxyError
from lipt.common.requests import FeatureKind, Proxy
from lipt.core.kept_values import KeptValue, Key
from lipt.core.progress import CallPart
from lipt.core.proxies.features import Extractor, concatenated_features
from lipt.core.proxies.proxy import MAX_SAMPLE
from lipt.core.proxies.ridge import HeadTargets, LeaveOneOut, leave_one_out
from lipt.core.stages.feature_kinds import (
    PROVIDERS,
    FeatureProvider,
    OnDone,
    common_identity,
    consecutive_parts,
)
from lipt.core.stages.resolve import TRAINED_FEATURES, Sources
from lipt.core.workspace import Workspace

Kinds = tuple[FeatureKind, ...]


class ProxyFeatures:
    """The features available to a proxy, and heads on them."""

    def __init__(
        self, workspace: Workspace, sources: Sources, proxy: Proxy, *, labelled: bool
    ) -> None:
        self.workspace, self.sources, self.proxy = workspace, sources, proxy
        self._labelled = labelled
        self._made: dict[FeatureKind, Extractor] = {}
        self._used = set[FeatureKind]()

    @cached_property
    def _providers(self) -> Mapping[FeatureKind, FeatureProvider]:
        accuracy = self._accuracy if self._labelled else None
        return {
            kind: provider(self.workspace, self.sources, accuracy)
            for kind, provider in PROVIDERS.items()
        }

    @property
    def available(self) -> frozenset[FeatureKind]:
        return frozenset(
            kind for kind, provider in self._providers.items() if provider.missing is None
        )

    def require(self) -> None:
        for kind in self.proxy.features or ():
            if missing := self._providers[kind].missing:
                raise ProxyError(
                    f"the proxy {self.proxy} is unavailable: `{kind}` needs {missing}. "
                    f"Give what is needed, or leave `{kind}` out."
                )

    def depends_on(self, proxy: Proxy) -> tuple[object, ...]:
        """All that a head on a proxy's features depends on."""
        identities = tuple(
            (kind, provider.identity())
            for kind, provider in self._providers.items()
            if proxy.may_use(kind) and provider.missing is None
        )
        return (str(proxy), *common_identity(self.workspace, self.sources), identities)

    def facts(self, kinds: Kinds, features_ND: Tensor) -> dict[str, Any]:
        return {
            "proxy": str(self.proxy),
            "features": list(kinds),
            "num_features": features_ND.shape[1],
            # Whether the seed drew filters or projections.
            "drawn": any(self._providers[kind].is_drawn for kind in self._used),
        }

    def use(self, kinds: Kinds) -> None:
        """Record that a result depends on features of these kinds."""
        self._used.update(kinds)

    def of_all(self, kinds: Kinds) -> Tensor:
        every_N = torch.arange(len(self.workspace.dataset))
        activity = f"computing features ({'+'.join(kinds)})"
        return self.of(kinds, every_N, self.workspace.progress(activity, CallPart.FEATURES))

    def of(self, kinds: Kinds, ids_N: Tensor, on_progress: OnDone) -> Tensor:
        """Features of some examples, side by side."""
        self.use(kinds)
        for kind in kinds:
            if kind not in self._made:
                self._made[kind] = self._providers[kind].extract()
        return concatenated_features(
            [self._made[kind] for kind in kinds],
            self.workspace.dataset,
            ids_N,
            on_progress=on_progress,
        )

    def head(
        self,
        features_ND: Tensor,
        on_progress: OnDone,
        *,
        some: Tensor | None = None,
        confidence_N: Tensor | None = None,
    ) -> LeaveOneOut:
        """A ridge head on the features of all examples, or of some."""
        device, dataset = self.workspace.device, self.workspace.dataset
        ids_N = torch.arange(len(dataset)) if some is None else some
        head_targets = HeadTargets.of(dataset)
        head = leave_one_out(
            features_ND.to(device),
            dataset.labels_N[ids_N].to(device),
            len(dataset.class_names),
            generator=derive_generator(self.sources.config.seed, "ridge sample"),
            confidence_N=None if confidence_N is None else confidence_N.to(device),
            head_targets=None if head_targets is None else head_targets.take(ids_N, device),
            on_progress=on_progress,
        )
        return replace(head, outputs_NC=head.outputs_NC.cpu())

    def _accuracy(self, features_MD: Tensor, ids_M: Tensor, on_progress: OnDone) -> float:
        return self.head(features_MD, on_progress, some=ids_M).accuracy


@dataclass(frozen=True)
class SampleHead(KeptValue):
    """Features of the sample, M x D, and leave-one-out outputs of a head on them, M x C."""

    features_MD: Tensor
    outputs_MC: Tensor
    accuracy: float
    penalty: float


class ProxySample:
    """The examples that proxies are compared on; each kind of their features is computed once."""

    def __init__(self, features: ProxyFeatures) -> None:
        num_examples = len(features.workspace.dataset)
        generator = derive_generator(features.sources.config.seed, "proxy sample")
        drawn_N = torch.randperm(num_examples, generator=generator)
        self.ids_M = drawn_N[:MAX_SAMPLE].sort().values
        self._features = features
        self._parts: dict[FeatureKind, Tensor] = {}

    def head(self, kinds: Kinds, activity: str, part: CallPart) -> tuple[Tensor, LeaveOneOut]:
        """The sample's features of some kinds, side by side, and a head on them.

        Without features of learners both are kept: they tell whether learners are needed, and are
        compared with these.
        """
        features = self._features
        features.use(kinds)

        def compute() -> SampleHead:
            missing = [kind for kind in kinds if kind not in self._parts]
            report = features.workspace.progress(f"{activity} ({'+'.join(kinds)})", part)
            *each, last = consecutive_parts(report, len(missing) + 1, len(self.ids_M))
            for kind, on_progress in zip(missing, each, strict=True):
                self._parts[kind] = features.of((kind,), self.ids_M, on_progress)
            features_MD = torch.cat([self._parts[kind] for kind in kinds], dim=1)
            head = features.head(features_MD, last, some=self.ids_M)
            return SampleHead(features_MD, head.outputs_NC, head.accuracy, head.penalty)

        if not set(kinds).isdisjoint(TRAINED_FEATURES):
            kept = compute()
        else:
            key = Key(SampleHead, "sample-head", features.depends_on(Proxy(kinds)))
            kept = features.workspace.cached(key, compute)
        if len(kinds) == 1:
            self._parts[kinds[0]] = kept.features_MD
        # A copy, as the caller may scale it in place.
        head = LeaveOneOut(kept.outputs_MC, kept.accuracy, kept.penalty)
        return kept.features_MD.clone(), head
