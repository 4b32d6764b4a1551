"""Proxied signals: those of a ridge head on a proxy's features, computed once, kept on disk.

Errors are the calibrated softmax of leave-one-out outputs minus one-hot, features the scaled
ones of the proxy: what every strategy looks at, of a better judge than theta_p.

Shapes: N examples, C classes, D features.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.determinism.seeding import derive_generator
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.proxy_features import FeatureMaker, ProxyQuestion
from lipt.coordinator.proxies.calibration import fit_sharpness
from lipt.coordinator.proxies.choice import MAX_SAMPLE, Tried, candidates, choose, passes_of
from lipt.coordinator.proxies.gram_sums import class_weights, scaling_of
from lipt.coordinator.proxies.proxy import Kind
from lipt.coordinator.proxies.ridge import LeaveOneOut, leave_one_out
from lipt.coordinator.proxies.side_by_side import side_by_side
from lipt.coordinator.signals.blocks import row_blocks
from lipt.coordinator.signals.compute import errors_of
from lipt.coordinator.signals.signals import Signals
from lipt.coordinator.signals.stored import STORAGE_LIMITS, load_tensors, save_tensors

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
        save_tensors(path, tensors, {"facts": json.dumps(dict(self.facts))})

    @classmethod
    def load(cls, path: Path) -> Proxied:
        """Map what `save` wrote into memory.

        Raises:
            StateError: the file cannot be read, or is not one of `save`.
        """

        def build(tensors: dict[str, Any], metadata: dict[str, str]) -> Proxied:
            return cls(Signals(**tensors), json.loads(metadata["facts"]))

        return load_tensors(path, "signals of a proxy", build)


def proxied_signals(context: Context, question: ProxyQuestion) -> tuple[Signals, Facts]:
    """Signals of a ridge head on the proxy's features, and what a manifest says of them.

    Raises:
        ProxyError: the proxy needs what is not there.
        FeaturesError: the request's features cannot be read.
        SignalsError: features are not finite.
    """
    maker = FeatureMaker(context, question)
    maker.require(question.proxy)
    config, proxy = question.config, question.proxy
    soup = config.soup
    statistics = (soup.batch_norm_examples, config.validation)
    depends_on = (
        str(proxy),
        config.seed,
        context.dataset.fingerprint,
        config.evaluation_threads,
        str(context.device),
        (question.weights, config.model, question.image)
        if proxy.may_use(Kind.SOUP) or proxy.may_use(Kind.LEARNERS)
        else None,
        (question.trajectories, statistics if soup.reestimate_batch_norm else None)
        if proxy.may_use(Kind.LEARNERS)
        else None,
        question.features if proxy.may_use(Kind.USER) else None,
        maker.backbone_digest if proxy.may_use(Kind.BACKBONE) else None,
    )
    with pinned_kernels(config.evaluation_threads):
        kept = context.cached(
            "proxied",
            depends_on,
            load=Proxied.load,
            compute=lambda: _compute(context, question, maker),
        )
    return kept.signals, kept.facts


def _compute(context: Context, question: ProxyQuestion, maker: FeatureMaker) -> Proxied:
    started = monotonic()
    wanted = question.proxy.features
    possible = candidates(maker.available) if wanted is None else [wanted]
    trials, kinds, tried = None, possible[0], []
    # Of one alone there is nothing to try.
    if len(possible) > 1:
        trials = _Trials.on_a_sample(context, maker, possible)
        kinds, tried = choose(trials.tried).features, trials.tried
    labels_N = context.dataset.labels_N
    if trials is not None and len(trials.ids_N) == len(labels_N):
        features_ND, head = trials.features_of(kinds), trials.heads[kinds]
    else:
        features_ND = side_by_side(
            [maker.extractor(kind) for kind in kinds],
            context.dataset,
            torch.arange(len(labels_N)),
            on_progress=context.progress(f"computing features ({'+'.join(kinds)})"),
        )
        head = _head(context, maker, features_ND, labels_N, "fitting a ridge head")
    sharpness = fit_sharpness(head.outputs_NC, labels_N, class_weights(labels_N))
    facts = {
        "proxy": str(question.proxy),
        "features": "+".join(kinds),
        "num_features": features_ND.shape[1],
        "accuracy": head.accuracy,
        "penalty": head.penalty,
        "sharpness": sharpness,
        "tried": [one.facts for one in tried],
        "seconds": monotonic() - started,
    }
    return Proxied(_signals(features_ND, labels_N, head, sharpness), facts)


@dataclass(frozen=True)
class _Trials:
    """Every candidate's leave-one-out accuracy on one sample, and what it came of."""

    ids_N: Tensor
    features: dict[Kind, Tensor]
    heads: dict[tuple[Kind, ...], LeaveOneOut]
    tried: list[Tried]

    @classmethod
    def on_a_sample(
        cls, context: Context, maker: FeatureMaker, possible: Sequence[tuple[Kind, ...]]
    ) -> _Trials:
        dataset = context.dataset
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
                        on_progress=context.progress(activity),
                    )
            features_ND = trials.features_of(kinds)
            head = _head(context, maker, features_ND, dataset.labels_N[ids_N], activity)
            trials.heads[kinds] = head
            price = passes_of(kinds, maker.num_learners)
            trials.tried.append(Tried(kinds, head.accuracy, price))
        return trials

    def features_of(self, kinds: tuple[Kind, ...]) -> Tensor:
        """The sample's features of some kinds, side by side."""
        return torch.cat([self.features[kind] for kind in kinds], dim=1)


def _head(
    context: Context, maker: FeatureMaker, features_ND: Tensor, labels_N: Tensor, activity: str
) -> LeaveOneOut:
    device = context.device
    head = leave_one_out(
        features_ND.to(device),
        labels_N.to(device),
        len(context.dataset.class_names),
        generator=derive_generator(maker.question.config.seed, "ridge sample"),
        on_progress=context.progress(activity),
    )
    return LeaveOneOut(head.outputs_NC.cpu(), head.accuracy, head.penalty, head.accuracies)


def _signals(features_ND: Tensor, labels_N: Tensor, head: LeaveOneOut, sharpness: float) -> Signals:
    """The features are scaled where they are."""
    num_examples, num_classes = head.outputs_NC.shape
    dtype = STORAGE_LIMITS.error_dtype(num_examples * num_classes)
    errors_NC = torch.empty(num_examples, num_classes, dtype=dtype)
    scaling = scaling_of(features_ND, class_weights(labels_N))
    for rows in row_blocks(num_examples, 8 * (num_classes + features_ND.shape[1])):
        logits_BC = head.outputs_NC[rows].double() * sharpness
        errors_NC[rows] = errors_of(logits_BC, labels_N[rows]).to(dtype)
        features_ND[rows] = scaling.apply(features_ND[rows]).to(features_ND.dtype)
    return Signals(errors_NC, features_ND, labels_N, has_bias=True)
