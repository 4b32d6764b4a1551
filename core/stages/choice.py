"""Choosing: compute the signals that a strategy needs, apply it, and make soft labels if wanted.

Soft labels are leave-one-out probabilities of a ridge head as training targets. Targets t_i =
(1 - alpha) onehot(y_i) + alpha p_i help a model that is trained on few examples, as in
distillation: p_i uses all other examples. `recommended_alpha` compares the head with one fitted to
the chosen examples alone, and is 0 where the trained model probably knows better than the head.

Shapes: N examples, K chosen ones, M of the others, B of a block, C classes.
Source: of soft labels, Hinton et al. 2015 (arXiv:1503.02531).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lipt.common.computation import computation
from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.errors import InvalidRequestError, SignalsError
from lipt.common.observability.tracing import span
from lipt.common.process.devices import device_name, versions
from lipt.common.requests import PRETRAINING, FeatureKind, Proxy
from lipt.common.subsets import Examples
from lipt.core.auto.evidence import gather
from lipt.core.diagnosis.label_errors import find_label_errors
from lipt.core.passes import merged_account, row_blocks
from lipt.core.progress import CallPart
from lipt.core.proxies.proxy import with_features_as_text
from lipt.core.proxies.ridge import class_weights, leave_one_out, weighted_accuracy
from lipt.core.selection.by_source import Division, SourceShares, select_by_source
from lipt.core.selection.select import find_strategy, select
from lipt.core.selection.selection import Selection
from lipt.core.signals.signals import (
    Signals,
    UserFeatures,
    features_of_pairs,
    moved_if_it_fits,
    probabilities_of,
    required,
    unlabelled,
)
from lipt.core.signals.views import INITIAL_NEEDS, MODEL_NEEDS, Need
from lipt.core.stages.diagnosis import matches_of
from lipt.core.stages.findings import (
    ChoiceInputs,
    alpha_sentence,
    class_shift,
    input_sentences,
    inputs_of,
    plan_sentences,
    source_sentence,
)
from lipt.core.stages.needed_learners import usable_sources
from lipt.core.stages.proxy import proxied_features, proxied_signals, with_probabilities
from lipt.core.stages.resolve import PROXY_NEEDS, ResolvedRequest, Sources, needs_of_head
from lipt.core.stages.target import target_signals
from lipt.core.stages.warm_up import (
    RunPass,
    WarmUpSignals,
    dynamics_of,
    outputs_identity,
    pass_here,
    signals_of,
    warm_up_signals,
)
from lipt.core.workspace import Workspace
from lipt.data.targets.kinds import TargetKind

_LEARNED = frozenset({FeatureKind.SOUP, FeatureKind.LEARNERS})


@dataclass(frozen=True)
class SoftLabels:
    """Probabilities of the classes, float16, and facts of the head for a manifest."""

    probabilities_KC: Tensor
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class ChosenSubset:
    """A request's answer: the examples by id, how they were chosen, and what a warm-up cost.

    manifest: the request, the proxy and the findings, as JSON.
    warm_up_seconds: of all trainings that the choice rests on; `spent_` of them in this choice.
    """

    examples: Examples
    manifest: Mapping[str, Any]
    warm_up_seconds: float | None = None
    spent_warm_up_seconds: float = 0.0


def choose(
    workspace: Workspace,
    request: ResolvedRequest,
    sources: Sources,
    *,
    run_pass: RunPass = pass_here,
) -> ChosenSubset:
    """Compute the inputs and select; SignalsError for outputs not finite, or an empty selection."""
    config, needs = sources.config, request.needs
    division = _division(workspace, request)
    with span("signals", strategy=request.strategy):
        signals, warm_up = _signals(workspace, request, sources, run_pass)
    selecting = workspace.progress(f"selecting by {request.strategy}", CallPart.SELECTION)
    selecting(0, 1)
    # Draws from labels alone are the same on any device: no accelerator is needed.
    alone = not needs and request.features is None
    device = torch.device("cpu") if alone else workspace.device
    with (
        computation(config.evaluation_threads),
        span("select", strategy=request.strategy, budget=request.budget),
    ):
        how: dict[str, Any] = {
            "balanced": request.balanced,
            "seed": derive_seed(config.seed, "selection"),
            "options": request.options,
        }
        strategy, placed = find_strategy(request.strategy), moved_if_it_fits(signals, device)
        if division is None:
            chosen = select(strategy, placed, request.budget, **how)
        else:
            chosen = select_by_source(strategy, placed, request.budget, division, **how)
    selecting(1, 1)
    if not len(chosen.indices_K):
        remedy = " Select on other weights, or by another strategy."
        raise SignalsError(
            f"strategy {request.strategy!r} chooses nothing for a budget of {request.budget}: "
            f"{chosen.stopped_early}{'' if signals.targeted else remedy}"
        )
    soft, heads = None, [signals.facts] if signals.facts else []
    if request.teacher is not None:
        taught = _proxied(workspace, request, sources, request.teacher)
        heads.append(required(taught.facts, "head"))
        with computation(config.evaluation_threads):
            soft = soft_labels(taught, chosen.indices_K.cpu(), seed=config.seed)
    target = None if signals.targeted is None else signals.targeted.facts
    inputs = inputs_of(request, signals.facts, heads, target)
    by_source = {} if division is None else division.counts(chosen.indices_K)
    learned = inputs.of_model or not _LEARNED.isdisjoint(inputs.used | inputs.tried)
    id_mapping = workspace.dataset.id_mapping
    manifest = {
        **request_facts(request, sources, signals.facts),
        "soft_labels": None if soft is None else with_features_as_text(soft.facts),
        # With weights of its own, or a warm-up, a request looks at no learner.
        "uses_pretraining": bool(learned and sources.num_merged),
        "stopped_early": chosen.stopped_early,
        "findings": _findings(workspace, request, sources, chosen, by_source, inputs, heads, soft),
        "target": target,
        "scored_by": signals.scored_by,
        "device": device_name(device),
        "versions": versions(),
    }
    examples = Examples(
        id_mapping.ids(chosen.indices_K).to(torch.int64).numpy(),
        chosen.weights_K.float().numpy(),
        None if soft is None else soft.probabilities_KC.numpy(),
    )
    if warm_up is None:
        return ChosenSubset(examples, manifest)
    return ChosenSubset(examples, manifest, warm_up.seconds, warm_up.spent_seconds)


def _division(workspace: Workspace, request: ResolvedRequest) -> Division | None:
    """The shares of the request's mixture, and each example's source, by position."""
    if request.mixture is None:
        return None
    shares, dataset = SourceShares.read(workspace.read(request.mixture)), workspace.dataset
    if shares.fingerprint != dataset.fingerprint:
        raise InvalidRequestError(
            f"the mixture is of data with the fingerprint {shares.fingerprint:.12}, and this data "
            f"has {dataset.fingerprint[:12]}. Mix the sources of this data: one table, by a column."
        )
    source_N = dataset.id_mapping.by_position(shares.source_of(dataset.num_ids))
    return Division(shares.weights, source_N)


def request_facts(
    request: ResolvedRequest, sources: Sources, proxy: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A manifest's part on the request, with the facts of its proxy."""
    warm_up = {} if request.warm_up is None else {PRETRAINING: str(request.warm_up)}
    uses_head = not request.proxy.is_own_head or (
        not request.unlabelled and bool(request.needs & (MODEL_NEEDS | {Need.DYNAMICS}))
    )
    return {
        "strategy": request.strategy,
        "preset": request.preset or None,
        "options": {**request.given, **warm_up},
        "labels": "none" if request.unlabelled else "given",
        "proxy": {
            # None if neither a head nor a model is used.
            "proxy": str(request.proxy) if uses_head else None,
            **({"backbone": sources.backbone} if sources.backbone else {}),
            **with_features_as_text(proxy or {}),
        },
        "budget": request.budget,
        "balanced": request.balanced,
    }


def _findings(
    workspace: Workspace,
    request: ResolvedRequest,
    sources: Sources,
    chosen: Selection,
    by_source: Mapping[str, int],
    inputs: ChoiceInputs,
    heads: Sequence[Mapping[str, Any]],
    soft: SoftLabels | None,
) -> dict[str, Any]:
    """The strategy's findings, with ids for positions, and sentences on the choice."""
    dataset, plan_findings = workspace.dataset, chosen.findings
    findings: dict[str, Any] = (
        plan_findings.by_id(dataset.id_mapping).to_json() if plan_findings else {}
    )
    plan, shift = plan_sentences(plan_findings) if plan_findings else [], list[str]()
    if by_source:
        findings["by_source"], plan = dict(by_source), [source_sentence(by_source)]
    if request.balanced and dataset.target.kind is TargetKind.CLASS:
        labels_K = dataset.labels_N[chosen.indices_K.cpu()]
        findings["class_shares"], shift = class_shift(dataset, labels_K)
    words = input_sentences(
        request,
        sources,
        inputs,
        heads,
        is_random=chosen.is_random,
        num_examples=len(dataset),
    )
    # The choice comes first, then what it changes.
    alpha = [alpha_sentence(soft.facts)] if soft else []
    findings["words"] = [*plan[:1], *shift, *plan[1:], *alpha, *words]
    return findings


def _signals(
    workspace: Workspace, request: ResolvedRequest, sources: Sources, run_pass: RunPass
) -> tuple[Signals, WarmUpSignals | None]:
    dataset, config, needs, warmed = workspace.dataset, sources.config, request.needs, None
    proxy = None if request.proxy.is_own_head else request.proxy
    if request.warm_up is not None:
        warmed = warm_up_signals(workspace, sources, request.warm_up, needs)
    # Validate them before the model's expensive pass over the data.
    own = _own_features(workspace, request)
    if warmed is not None:
        signals = warmed.signals
    elif request.unlabelled:
        signals = unlabelled(len(dataset))
        if proxy is not None:
            signals = proxied_features(workspace, sources, proxy)
    else:
        of_model = needs - PROXY_NEEDS
        if proxy is None:
            of_model |= needs_of_head(request.features, needs)
        _, weights = sources.model
        depends_on = outputs_identity(workspace, sources)
        load = partial(workspace.loaded_model, config, weights)
        signals = signals_of(
            workspace, sources, of_model, depends_on, load, run_pass=run_pass, weights=weights
        )
        if proxy is not None and needs & PROXY_NEEDS:
            proxied = _proxied(workspace, request, sources, proxy)
            signals = replace(proxied, gradient_norms_N=signals.gradient_norms_N)
    return _completed(workspace, request, sources, signals, own, run_pass), warmed


def _proxied(
    workspace: Workspace, request: ResolvedRequest, sources: Sources, proxy: Proxy
) -> Signals:
    usable = usable_sources(workspace, request, sources, proxy)
    signals = proxied_signals(workspace, usable.sources, proxy)
    with computation(sources.config.evaluation_threads):
        signals = with_probabilities(workspace, sources, signals)
    if usable.unneeded is None:
        return signals
    return replace(signals, facts={**(signals.facts or {}), "unneeded": usable.unneeded})


def _own_features(workspace: Workspace, request: ResolvedRequest) -> UserFeatures | None:
    """The user's features, or the data set's own pairs."""
    if request.features is not None:
        workspace.report("reading the features", 0, 1)
        features = workspace.user_features(request.features)
        workspace.report("reading the features", 1, 1)
        return features
    paired = Need.PAIRED_FEATURES in request.needs and not request.unlabelled
    return features_of_pairs(workspace.dataset) if paired else None


def _completed(
    workspace: Workspace,
    request: ResolvedRequest,
    sources: Sources,
    signals: Signals,
    own: UserFeatures | None,
    run_pass: RunPass,
) -> Signals:
    """The signals with the user's features, and with inputs that need no model."""
    config, needs = sources.config, request.needs
    if own is not None:
        if not request.unlabelled:
            signals = replace(signals, paired_features_NP=own.paired_features_NP)
        # A proxy's features are the requested ones; pairs come from one file.
        if signals.facts is None or Need.PAIRED_FEATURES in needs:
            signals = replace(signals, features_ND=own.features_ND)
    if Need.DYNAMICS in needs and sources.trajectories is not None:
        dynamics = dynamics_of(workspace, config, sources.model[0], sources.trajectories)
        signals = replace(signals, dynamics=dynamics)
    if needs & INITIAL_NEEDS:
        targeted = target_signals(workspace, request, sources, run_pass)
        scored_by = merged_account(signals.scored_by, targeted.scored_by)
        signals = replace(signals, targeted=targeted, scored_by=scored_by)
    if Need.DUPLICATES in needs:
        copies = matches_of(workspace, config.evaluation_threads)
        signals = replace(signals, duplicate_group_N=copies.duplicate_group_N)
    if Need.VALIDATION in needs:
        ids = workspace.split(config).validation_ids
        signals = replace(signals, validation=signals.take(ids) if len(ids) else None)
    return signals


# On 20,000 images of cifar10-jpeg the best alpha is 0.8 for a random fiftieth, 0.5 for a tenth, 0.3
# for 30%; a head of these alone is 18.5, 7.6 and 3.8 points behind: 0.8 (1 - exp(-points / 8)).
_MOST, _POINTS = 0.8, 0.08
# Examples on which the head of the chosen ones is evaluated.
_MAX_SAMPLE = 2_000
_NO_WEIGHT = 1e-9


def soft_labels(signals: Signals, places_K: Tensor, *, seed: int) -> SoftLabels:
    """Soft labels of the examples at `places_K`, by a proxy's second head or its only one."""
    labels_N, errors_NC, head = signals.labels_N, signals.errors_NC, required(signals.facts, "head")
    confidence_N = signals.confidence_N
    if confidence_N is None:
        confidence_N = torch.ones_like(labels_N, dtype=torch.float64)
    if signals.second_errors_NC is not None:
        errors_NC, head = signals.second_errors_NC, {**head, **head["second"]}
    on_others, alone = _accuracies_on_others(signals, errors_NC, places_K, confidence_N, seed)
    trust = gather(signals, find_label_errors(signals), len(places_K), "converged").trust
    suspected = float((confidence_N[places_K] < 1).double().mean())
    facts = {
        "features": head["features"],
        "probabilities": head.get("probabilities"),
        "tried": head["tried"],
        "accuracy": head["accuracy"],
        "temperature": 1 / head["inverse_temperature"],
        "accuracy_on_others": on_others,
        "accuracy_of_chosen_alone": alone,
        "suspected": suspected,
        "trust": trust,
        "recommended_alpha": recommended_alpha(on_others, alone, suspected, trust),
    }
    probabilities_KC = torch.empty(len(places_K), errors_NC.shape[1], dtype=torch.float16)
    for rows in row_blocks(len(places_K), 8 * errors_NC.shape[1]):
        places_B = places_K[rows]
        probabilities_BC = probabilities_of(errors_NC[places_B], labels_N[places_B])
        probabilities_KC[rows] = probabilities_BC.clamp_(0, 1).half()
    return SoftLabels(probabilities_KC, facts)


def _accuracies_on_others(
    signals: Signals, errors_NC: Tensor, places_K: Tensor, confidence_N: Tensor, seed: int
) -> tuple[float, float]:
    """Accuracies on a sample of the others: of the head, and of one of the chosen alone."""
    labels_N, generator = signals.labels_N, derive_generator(seed, "soft labels")
    unchosen_N = torch.ones(len(labels_N), dtype=torch.bool)
    unchosen_N[places_K] = False
    others_M = torch.nonzero(unchosen_N).flatten()
    if not len(others_M):
        return 1.0, 1.0
    others_M = others_M[torch.randperm(len(others_M), generator=generator)[:_MAX_SAMPLE]]
    rows, num_chosen = torch.cat([places_K, others_M]), len(places_K)
    # The others are scored, and have no weight in the fit.
    teach = confidence_N[rows]
    teach[num_chosen:] = _NO_WEIGHT
    head = leave_one_out(
        signals.features_ND[rows].float(),
        labels_N[rows],
        signals.errors_NC.shape[1],
        generator=generator,
        confidence_N=teach,
    )
    labels_M = labels_N[others_M]
    weights_M = class_weights(labels_M, confidence_N[others_M])
    known_MC = probabilities_of(errors_NC[others_M], labels_M)
    on_others = weighted_accuracy(known_MC, labels_M, weights_M)
    return on_others, weighted_accuracy(head.outputs_NC[num_chosen:], labels_M, weights_M)


def recommended_alpha(accuracy: float, alone: float, suspected: float, trust: float) -> float:
    """Share of the head's probabilities in targets, by its gain and the doubtful labels' share.

    trust: 0 where the trained model probably knows better than the head, else up to 1.
    """
    alpha = _MOST * -math.expm1(-max(accuracy - alone, 0.0) / _POINTS)
    # The head is right about as often as labels are wrong.
    return trust * (alpha + (1 - alpha) * min(suspected, 1.0))
