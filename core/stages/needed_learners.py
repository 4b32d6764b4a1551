"""Needed learners: whether the proxy `auto` needs any, from what costs no training.

A ridge head on untrained features (patches or columns, the user's, theta*'s of given weights)
answers two questions:

1. Can features of theta_p pay? They would have to remove more errors than training costs
   (`training_can_pay`).
2. Can they change the choice of the strategy `auto`? Not where its plan is class-balanced random,
   whatever a better head finds.

The answers follow from data, configuration and request, whether or not learners are trained
already. So a run's learners are used by the same rule, and one seed gives one subset.

Shapes: M examples of a sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from lipt.common.config.run_config import RunConfig
from lipt.common.requests import Proxy
from lipt.core.auto.evidence import gather
from lipt.core.auto.plan import learners_can_matter
from lipt.core.diagnosis.duplicates import surplus_duplicates
from lipt.core.diagnosis.label_errors import find_label_errors
from lipt.core.proxies.proxy import MAX_SAMPLE, removed_at_best, training_can_pay
from lipt.core.selection.select import find_strategy
from lipt.core.selection.strategies.auto import auto
from lipt.core.signals.views import Need
from lipt.core.stages.diagnosis import matches_of
from lipt.core.stages.proxy import proxied_signals, sample_signals
from lipt.core.stages.resolve import PROXY_NEEDS, ResolvedRequest, Sources
from lipt.core.workspace import Workspace
from lipt.data.targets.kinds import TargetKind


class Unneeded(StrEnum):
    """Why no learner is needed."""

    PRICE = "price"
    """Their features cannot remove as many errors as their training costs."""
    PLAN = "plan"
    """The choice is class-balanced random, whatever they find."""
    PROBABILITIES = "probabilities"
    """The user's own class probabilities replace a head's."""


@dataclass(frozen=True)
class UsableSources:
    """The inputs that a proxy may use, and why no learner is among them, if none is."""

    sources: Sources
    unneeded: Unneeded | None


def needs_learners(workspace: Workspace, request: ResolvedRequest, sources: Sources) -> bool:
    """Whether the signals of a request whose weights are theta_p depend on learners."""
    needs = request.needs
    own_head = request.proxy.is_own_head and bool(needs & PROXY_NEEDS)
    if own_head or needs & {Need.DYNAMICS, Need.GRADIENT_NORMS}:
        return True
    proxies = dict.fromkeys((request.proxy, request.signal_proxy))
    return any(
        usable_sources(workspace, request, sources, proxy).unneeded is None
        for proxy in proxies
        if not proxy.is_own_head
    )


def usable_sources(
    workspace: Workspace, request: ResolvedRequest, sources: Sources, proxy: Proxy
) -> UsableSources:
    """Decide from untrained features whether a proxy may use the run's learners."""
    if proxy.features is not None or request.unlabelled or sources.has_own_weights:
        return UsableSources(sources, None)
    untrained = sources.untrained
    if sources.probabilities is not None:
        return UsableSources(untrained, Unneeded.PROBABILITIES)
    unneeded = _unneeded(workspace, request, untrained, proxy)
    return UsableSources(sources if unneeded is None else untrained, unneeded)


def _unneeded(
    workspace: Workspace, request: ResolvedRequest, untrained: Sources, proxy: Proxy
) -> Unneeded | None:
    dataset, config = workspace.dataset, untrained.config
    decides_by_plan = find_strategy(request.strategy) is auto and request.teacher is None
    if decides_by_plan and dataset.target.kind is not TargetKind.CLASS:
        return Unneeded.PLAN
    # Signals of all examples are not computed twice.
    compute = sample_signals if len(dataset) > MAX_SAMPLE else proxied_signals
    signals = compute(workspace, untrained, proxy)
    facts = signals.facts or {}
    kinds = facts["features"]
    passes = training_passes(config, len(dataset))
    if not training_can_pay(facts["accuracy"], kinds, passes):
        return Unneeded.PRICE
    if not decides_by_plan:
        return None
    duplicate_group_N = matches_of(workspace, config.evaluation_threads).duplicate_group_N
    copies = float(surplus_duplicates(duplicate_group_N).double().mean())
    training = request.options["training"]
    of_sample = gather(signals, find_label_errors(signals), request.budget, training, copies)
    share = len(signals.labels_N) / len(dataset)
    of_all = replace(of_sample, fraction=of_sample.fraction * share)
    matters = learners_can_matter(of_all, removed_at_best(kinds))
    return None if matters else Unneeded.PLAN


def training_passes(config: RunConfig, num_examples: int) -> float:
    """Price of a run's training in forward passes over the data; a step costs three."""
    learners, initialization = config.learners, config.initialization
    shard = learners.num_minibatches * learners.batch_size
    trained = learners.num_learners * learners.num_steps * shard
    if initialization.steps is not None:
        trained += initialization.steps * initialization.batch_size
    else:
        trained += round(initialization.epochs * num_examples)
    return 3.0 * trained / num_examples
