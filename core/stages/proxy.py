"""Proxied signals: those of a ridge head on a proxy's features, computed once, kept on disk.

Errors are the calibrated softmax of leave-one-out outputs minus one-hot, or the outputs' residuals
for labels and numbers. With surely wrong labels, a second head is fitted to the confident ones.
A user's own class probabilities replace the errors of both heads.

Shapes: N examples, B of a block, M of a sample, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import torch
from torch import Tensor

from lipt.common.computation import computation
from lipt.common.requests import Proxy
from lipt.core.diagnosis.label_errors import (
    find_label_errors,
    label_confidence,
    second_head_helps,
)
from lipt.core.kept_values import Key
from lipt.core.passes import row_blocks
from lipt.core.progress import CallPart
from lipt.core.proxies.proxy import ProxyScore, can_win, candidates, choose, passes_of
from lipt.core.proxies.ridge import (
    HeadTargets,
    LeaveOneOut,
    class_weights,
    fit_inverse_temperature,
    float64_blocks,
    fullness,
    scaling_of,
    weighted_accuracy,
)
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import STORAGE_LIMITS, Signals, required, unlabelled
from lipt.core.stages.proxy_features import Kinds, ProxyFeatures, ProxySample
from lipt.core.stages.resolve import Sources
from lipt.core.workspace import Workspace

# Accuracy on the sample above which the first proxy is fitted to all examples.
_EASY = 0.95


def proxied_signals(workspace: Workspace, sources: Sources, proxy: Proxy) -> Signals:
    """Signals of a ridge head on the proxy's features, with facts for a manifest.

    ProxyError or FeaturesError if features are unavailable; SignalsError if not finite.
    """
    return _kept("proxy", ProxyFeatures(workspace, sources, proxy, labelled=True), _with_heads)


def with_probabilities(workspace: Workspace, sources: Sources, signals: Signals) -> Signals:
    """The signals with the errors of the user's own class probabilities, if they are given."""
    if sources.probabilities is None:
        return signals
    labels_N = signals.labels_N
    probabilities_NC = workspace.probabilities(sources.probabilities)

    def errors(block_BC: Tensor, rows: slice) -> Tensor:
        own_B1 = labels_N[rows][:, None]
        return block_BC.scatter_add(1, own_B1, -torch.ones_like(own_B1, dtype=block_BC.dtype))

    facts = {name: fact for name, fact in (signals.facts or {}).items() if name != "second"}
    facts |= {
        "probabilities": sources.probabilities.sha256,
        "accuracy": weighted_accuracy(probabilities_NC, labels_N, class_weights(labels_N)),
        "inverse_temperature": 1.0,
    }
    errors_NC = _errors(probabilities_NC, errors)
    own = replace(signals, errors_NC=errors_NC, second_errors_NC=None, facts=facts)
    return _with_confidence(own)


def sample_signals(workspace: Workspace, sources: Sources, proxy: Proxy) -> Signals:
    """Signals of a head on the best features of a sample, and their facts."""
    return _kept(
        "proxy-sample", ProxyFeatures(workspace, sources, proxy, labelled=True), _of_sample
    )


def proxied_features(workspace: Workspace, sources: Sources, proxy: Proxy) -> Signals:
    """The proxy's features without labels or errors; all examples are of one class."""
    features = ProxyFeatures(workspace, sources, proxy, labelled=False)
    return _kept("proxy-features", features, _without_labels)


def _kept(
    kind: str, features: ProxyFeatures, compute: Callable[[ProxyFeatures], Signals]
) -> Signals:
    features.require()
    workspace, threads = features.workspace, features.sources.config.evaluation_threads
    key = Key(Signals, kind, features.depends_on(features.proxy))
    with computation(threads):
        return workspace.cached(key, lambda: compute(features))


def _with_heads(features: ProxyFeatures) -> Signals:
    started, dataset = monotonic(), features.workspace.dataset
    labels_N, targets = dataset.labels_N, HeadTargets.of(dataset)
    kinds, features_ND, head, tried = _chosen(features)
    facts = {
        **features.facts(kinds, features_ND),
        "accuracy": head.accuracy,
        "penalty": head.penalty,
        "tried": [score.facts for score in tried],
    }
    if targets is not None:
        # Strata are no classes: every example counts alike.
        _scale(features_ND, torch.zeros_like(labels_N))
        errors_NC = _errors(head.outputs_NC, targets.errors)
        kind = targets.target.kind
        facts |= {"score": kind.score_name, "seconds": monotonic() - started}
        return Signals(errors_NC, features_ND, labels_N, kind=kind, facts=facts)
    errors_NC, inverse_temperature = _calibrated_errors(head, labels_N, class_weights(labels_N))
    _scale(features_ND, labels_N)
    signals = _with_confidence(Signals(errors_NC, features_ND, labels_N, facts=facts))
    facts, confidence_N = dict(signals.facts or {}), signals.confidence_N
    if confidence_N is not None and second_head_helps(labels_N, features_ND.shape[1]):
        activity = "fitting a second head, to confident labels"
        report = features.workspace.progress(activity, CallPart.SECOND_HEAD)
        second = features.head(features_ND, report, confidence_N=confidence_N)
        weights_N = class_weights(labels_N, confidence_N)
        second_NC, second_inverse_temperature = _calibrated_errors(second, labels_N, weights_N)
        signals = replace(signals, second_errors_NC=second_NC)
        facts["second"] = {
            "accuracy": second.accuracy,
            "inverse_temperature": second_inverse_temperature,
        }
    facts |= {
        "chance": float(1 / fullness(labels_N.bincount()).sum()),
        "inverse_temperature": inverse_temperature,
        "seconds": monotonic() - started,
    }
    return replace(signals, facts=facts)


def _with_confidence(signals: Signals) -> Signals:
    """The signals with their labels' weights in a later fit, and the number of doubtful ones."""
    confidence_N = label_confidence(find_label_errors(signals), signals.labels_N)
    suspected = 0 if confidence_N is None else int((confidence_N < 1).sum())
    facts = {**(signals.facts or {}), "suspected": suspected}
    return replace(signals, confidence_N=confidence_N, facts=facts)


def _of_sample(features: ProxyFeatures) -> Signals:
    sample, activity = ProxySample(features), "looking at a sample"
    heads, tried = dict[Kinds, tuple[Tensor, LeaveOneOut]](), list[ProxyScore]()
    for kinds in candidates(features.available):
        if can_win(passes := passes_of(kinds, 0), tried):
            heads[kinds] = sample.head(kinds, activity, CallPart.SAMPLE)
            tried.append(ProxyScore(kinds, heads[kinds][1].accuracy, passes))
    best, dataset = choose(tried), features.workspace.dataset
    (features_MD, head), labels_M = heads[best.features], dataset.labels_N[sample.ids_M]
    targets = HeadTargets.of(dataset)
    if targets is None:
        errors_MC, _ = _calibrated_errors(head, labels_M, class_weights(labels_M))
    else:
        errors_MC = _errors(head.outputs_NC, targets.take(sample.ids_M).errors)
    facts = {"features": list(best.features), "accuracy": best.accuracy}
    return Signals(errors_MC, features_MD, labels_M, kind=dataset.target.kind, facts=facts)


def _without_labels(features: ProxyFeatures) -> Signals:
    started, kinds = monotonic(), required(features.proxy.features, "features")
    features_ND = features.of_all(kinds)
    signals = unlabelled(len(features_ND))
    _scale(features_ND, signals.labels_N)
    facts = {**features.facts(kinds, features_ND), "seconds": monotonic() - started}
    return replace(signals, features_ND=features_ND, facts=facts)


def _chosen(features: ProxyFeatures) -> tuple[Kinds, Tensor, LeaveOneOut, list[ProxyScore]]:
    """The proxy's features, or the best's, their head, and the proxies tried."""
    asked_kinds, num_examples = features.proxy.features, len(features.workspace.dataset)
    possible = candidates(features.available) if asked_kinds is None else [asked_kinds]
    first, tried = possible[0], list[ProxyScore]()
    # Features and heads of all examples.
    fitted = dict[Kinds, tuple[Tensor, LeaveOneOut]]()

    def scored(kinds: Kinds, head: LeaveOneOut) -> ProxyScore:
        return ProxyScore(kinds, head.accuracy, passes_of(kinds, features.sources.num_learners))

    def of_all(kinds: Kinds) -> tuple[Tensor, LeaveOneOut]:
        features_ND = features.of_all(kinds)
        report = features.workspace.progress("fitting a ridge head", CallPart.HEAD)
        return features_ND, features.head(features_ND, report)

    sample, activity = ProxySample(features), "trying proxies on a sample"
    for kinds in possible if len(possible) > 1 else ():
        known = [*tried, *(scored(tried_kinds, head) for tried_kinds, (_, head) in fitted.items())]
        if not can_win(passes_of(kinds, features.sources.num_learners), known):
            continue
        features_MD, head = sample.head(kinds, activity, CallPart.TRIALS)
        tried.append(scored(kinds, head))
        if len(sample.ids_M) == num_examples:
            fitted[kinds] = features_MD, head
        elif kinds == first and head.accuracy > _EASY:
            # With all examples it may leave too few errors for others to pay.
            fitted[first] = of_all(first)
    best = choose(tried).features if tried else first
    # Otherwise only the best on the sample is fitted to all examples.
    features_ND, head = fitted[best] if best in fitted else of_all(best)
    return best, features_ND, head, tried


def _calibrated_errors(
    head: LeaveOneOut, labels_N: Tensor, weights_N: Tensor
) -> tuple[Tensor, float]:
    inverse_temperature = fit_inverse_temperature(head.outputs_NC, labels_N, weights_N)

    def errors(outputs_BC: Tensor, rows: slice) -> Tensor:
        return errors_of(outputs_BC.double() * inverse_temperature, labels_N[rows])

    return _errors(head.outputs_NC, errors), inverse_temperature


def _errors(outputs_NC: Tensor, errors: Callable[[Tensor, slice], Tensor]) -> Tensor:
    dtype = STORAGE_LIMITS.error_dtype(outputs_NC.numel())
    errors_NC = torch.empty(outputs_NC.shape, dtype=dtype)
    for rows in row_blocks(len(outputs_NC), 8 * outputs_NC.shape[1]):
        errors_NC[rows] = errors(outputs_NC[rows], rows).to(dtype)
    return errors_NC


def _scale(features_ND: Tensor, labels_N: Tensor) -> None:
    scaling = scaling_of(features_ND, class_weights(labels_N))
    for rows, block_BD in float64_blocks(features_ND):
        features_ND[rows] = scaling.apply_(block_BD)
