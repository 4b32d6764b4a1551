"""Choosing: compute the signals that a strategy needs, and apply it.

Shapes: K chosen examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any

import torch

from lipt.common.data.dataset import IdMapping
from lipt.common.determinism import derive_seed, pinned_kernels
from lipt.common.errors import SignalsError
from lipt.common.observability.tracing import span
from lipt.common.process.devices import device_name, versions
from lipt.common.subsets import Examples
from lipt.core.proxies.proxy import MAX_SAMPLE, FeatureKind, Proxy
from lipt.core.selection.options import WarmUp
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategy import Need
from lipt.core.signals.signals import Signals, moved_if_it_fits, required, unlabelled
from lipt.core.signals.stored import UserFeatures, features_of_pairs
from lipt.core.soft_labels import SoftLabels, soft_labels
from lipt.core.stages.diagnosis import matches_of
from lipt.core.stages.proxy import proxied_features, proxied_signals
from lipt.core.stages.question import PROXY_NEEDS, TRAINED_FEATURES, Labels, Question
from lipt.core.stages.warm_up import (
    ComputeSignals,
    WarmUpSignals,
    dynamics_of,
    model_signals,
    signals_of,
    warm_up_signals,
)
from lipt.core.workspace import Workspace

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Chosen:
    """The answer to a question.

    selection: ids, ascending, and their weights. device: that the strategy ran on.
    proxy: facts of the proxy, for a manifest. warm_up: the ordinary warm-up's costs.
    soft: soft labels of the chosen examples. scored_by: credentials that scored for the signals.
    """

    selection: Selection
    device: str
    proxy: Mapping[str, Any] | None = None
    warm_up: WarmUpSignals | None = None
    soft: SoftLabels | None = None
    scored_by: Mapping[str, Any] | None = None

    @property
    def examples(self) -> Examples:
        """Ids, weights and soft labels, the input of a subset's digest."""
        return Examples(
            self.selection.indices_K.to(torch.int64).numpy(),
            self.selection.weights_K.float().numpy(),
            None if self.soft is None else self.soft.probabilities_KC.numpy(),
        )


def manifest_of(question: Question, chosen: Chosen) -> dict[str, Any]:
    """The manifest of a question and its answer."""
    return {
        "strategy": question.strategy,
        "preset": question.preset,
        "options": dict(question.options),
        "labels": str(question.labels or Labels.GIVEN),
        "proxy": {
            "proxy": question.proxy_name,
            **({"backbone": question.backbone} if question.backbone else {}),
            **(chosen.proxy or {}),
        },
        "soft_labels": None if chosen.soft is None else chosen.soft.facts,
        "budget": question.budget,
        "balanced": question.balanced,
        "stopped_early": chosen.selection.stopped_early,
        "findings": dict(chosen.selection.findings),
        "scored_by": chosen.scored_by,
        "device": chosen.device,
        "versions": versions(),
    }


def choose(
    workspace: Workspace, question: Question, *, compute: ComputeSignals = model_signals
) -> Chosen:
    """Compute the inputs and select; SignalsError for outputs not finite, or an empty selection."""
    strategy, needs = find_strategy(question.strategy), question.needs
    with span("signals", strategy=question.strategy):
        signals, warm_up = _signals(workspace, question, needs, compute)
    workspace.report(f"selecting by {question.strategy}", 0, 1)
    # Draws from labels alone are the same on any device: no accelerator is needed.
    alone = not needs and question.features is None
    device = torch.device("cpu") if alone else workspace.device
    with (
        pinned_kernels(question.config.evaluation_threads),
        span("select", strategy=question.strategy, budget=question.budget),
    ):
        chosen = select(
            strategy,
            moved_if_it_fits(signals, device),
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
    soft, heads = None, [signals.facts] if signals.facts else []
    if question.teacher is not None:
        taught = proxied_signals(workspace, question, Proxy.parse(question.teacher))
        heads.append(required(taught.facts, "head"))
        with pinned_kernels(question.config.evaluation_threads):
            soft = soft_labels(taught, chosen.indices_K.cpu(), seed=question.config.seed)
    own_words = chosen.findings.get("words", ())
    words = _input_sentences(
        question, signals.facts, heads, chosen.findings, len(workspace.dataset)
    )
    alpha = [_alpha(soft.facts)] if soft else []
    chosen = replace(chosen, findings={**chosen.findings, "words": [*words, *alpha, *own_words]})
    selection = _by_id(chosen, workspace.dataset.id_mapping)
    facts = (signals.facts, warm_up, soft, signals.scored_by)
    return Chosen(selection, device_name(device), *facts)


def _input_sentences(
    question: Question,
    proxy: Facts | None,
    heads: Sequence[Facts],
    findings: Facts,
    num_examples: int,
) -> list[str]:
    """Sentences on the head, on the learners, and on whether seed and model can matter.

    proxy: facts of the strategy's head. heads: of all heads, soft labels' included.
    """
    strategy, needs = find_strategy(question.strategy), question.needs
    own = question.features is not None or Need.PAIRED_FEATURES in needs
    looks = needs & ({Need.SIGNALS, Need.VALIDATION} if own else PROXY_NEEDS)
    of_model = needs & {Need.DYNAMICS, Need.GRADIENT_NORMS}
    if proxy is None and question.labels is None:
        of_model |= looks
    used = {kind for head in heads for kind in _kinds_of(head)}
    tried = {kind for head in heads for one in head.get("tried", ()) for kind in _kinds_of(one)}
    learners = _learners_sentence(question, used, tried, of_model)
    draws = "seed" in signature(strategy.function).parameters
    if "method" in findings:
        draws = findings["method"] == "random"
    # Heads of more examples choose their penalty on a drawn sample.
    drawn = any(head["drawn"] or num_examples > MAX_SAMPLE for head in heads)
    if of_model or (used | tried).intersection(TRAINED_FEATURES):
        mattered = "another seed or model may give another subset"
    elif draws or drawn or Need.VALIDATION in needs:
        mattered = "another seed may give another subset; no model was used"
    else:
        mattered = "any seed and model give this subset"
    by = "the request's own features" if own else "no features"
    if of_model:
        by = "a model with its own head"
    if Need.DYNAMICS in needs:
        by = "outputs of the learners in training"
    return [_proxy_sentence(proxy, by), learners, mattered]


def _proxy_sentence(head: Facts | None, by: str) -> str:
    if head is None:
        return f"judged by {by}"
    if "accuracy" not in head:
        return f"judged by features ({head['features']}) without any label"
    score = f"right on {head['accuracy']:.1%} of the labels that it has not seen"
    if "score" in head:
        score = f"with {head['score']} {head['accuracy']:.3g} on examples that it has not seen"
    return f"judged by a ridge head on {head['features']}, {score}"


def _alpha(soft: Facts) -> str:
    text = (
        f"recommended alpha {soft['recommended_alpha']:.2g}: of the labels not chosen, the head of "
        f"all ({soft['features']}) is right on {soft['accuracy_on_others']:.1%}, one of the chosen "
        f"alone on {soft['accuracy_of_chosen_alone']:.1%}"
    )
    doubted = soft["suspected"]
    return f"{text}; {doubted:.1%} of the chosen labels look wrong" if doubted else text


def _kinds_of(facts: Facts) -> list[str]:
    kinds: list[str] = facts["features"].split("+")
    return kinds


def _learners_sentence(
    question: Question, used: set[str], tried: set[str], of_model: frozenset[Need]
) -> str:
    count, merged = question.num_learners, question.num_merged
    needs_each = FeatureKind.LEARNERS in used or Need.DYNAMICS in question.needs
    if count and needs_each:
        return f"{count} learner{'' if count == 1 else 's'} took part"
    if merged and (of_model or FeatureKind.SOUP in used):
        return f"{merged} learner{'' if merged == 1 else 's'} took part, merged into theta_p"
    if FeatureKind.LEARNERS in tried:
        return f"no learner was used; {count} were tried"
    return "no learner was used" + ("; theta_p was tried" if FeatureKind.SOUP in tried else "")


def _signals(
    workspace: Workspace, question: Question, needs: frozenset[Need], compute: ComputeSignals
) -> tuple[Signals, WarmUpSignals | None]:
    dataset, config, warmed = workspace.dataset, question.config, None
    proxy = None if question.proxy is None else Proxy.parse(question.proxy)
    warm_up = WarmUp.among(dict(question.options))
    if warm_up is not None:
        warmed = warm_up_signals(workspace, question, warm_up)
    # Validate them before the model's expensive pass over the data.
    own = _own_features(workspace, question, needs)
    if warmed is not None:
        signals = warmed.signals
    elif question.labels is not None:
        signals = unlabelled(len(dataset))
        if proxy is not None:
            signals = proxied_features(workspace, question, proxy)
    else:
        looks = own is None or bool(needs & {Need.SIGNALS, Need.VALIDATION})
        of_model = needs if looks and proxy is None else needs - PROXY_NEEDS
        depends_on = (
            question.weights.sha256,
            dataset.fingerprint,
            config.model,
            question.inputs,
            config.evaluation_threads,
            str(workspace.device),
        )
        load = partial(workspace.loaded_model, config, question.weights)
        signals = signals_of(workspace, question, of_model, depends_on, load, compute=compute)
        if proxy is not None and needs & PROXY_NEEDS:
            proxied = proxied_signals(workspace, question, proxy)
            signals = replace(proxied, gradient_norms_N=signals.gradient_norms_N)
    return _with_more(workspace, question, needs, signals, own), warmed


def _own_features(
    workspace: Workspace, question: Question, needs: frozenset[Need]
) -> UserFeatures | None:
    """The user's features, or the data set's own pairs."""
    if question.features is not None:
        workspace.report("reading the features", 0, 1)
        return workspace.user_features(question.features)
    paired = Need.PAIRED_FEATURES in needs and question.labels is None
    return features_of_pairs(workspace.dataset) if paired else None


def _with_more(
    workspace: Workspace,
    question: Question,
    needs: frozenset[Need],
    signals: Signals,
    own: UserFeatures | None,
) -> Signals:
    """The signals with the user's features, and with inputs that need no model."""
    config = question.config
    if own is not None:
        if question.labels is None:
            signals = replace(signals, paired_features_NP=own.paired_features_NP)
        # A proxy's features are the requested ones; pairs come from one file.
        if signals.facts is None or Need.PAIRED_FEATURES in needs:
            signals = replace(signals, features_ND=own.features_ND)
    if Need.DYNAMICS in needs and question.trajectories is not None:
        dynamics = dynamics_of(workspace, config, question.inputs, question.trajectories)
        signals = replace(signals, dynamics=dynamics)
    if Need.DUPLICATES in needs:
        copies = matches_of(workspace, config.evaluation_threads)
        signals = replace(signals, pictures_N=copies.pictures_N)
    if Need.VALIDATION in needs:
        ids = workspace.split(config).validation_ids
        signals = replace(signals, validation=signals.take(ids) if len(ids) else None)
    return signals


def _by_id(chosen: Selection, id_mapping: IdMapping) -> Selection:
    findings, excluded = chosen.findings, chosen.findings.get("excluded", {})
    if "lowest_quality_ids" in excluded:
        rows = torch.tensor(excluded["lowest_quality_ids"], dtype=torch.int64)
        named = {**excluded, "lowest_quality_ids": id_mapping.ids(rows).tolist()}
        findings = {**findings, "excluded": named}
    return replace(chosen, indices_K=id_mapping.ids(chosen.indices_K), findings=findings)
