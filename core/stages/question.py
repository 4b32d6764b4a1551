"""Questions: from a trainer's query to a question with weights and options.

Every error that follows from the query alone is raised here, before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import InvalidRequestError, SignalsError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import InputFormat
from lipt.common.subsets import resolve_budget
from lipt.common.targets.kinds import TargetKind
from lipt.core.proxies.proxy import SOUP, Kind, Proxy
from lipt.core.results import Outcome, Trajectories
from lipt.core.selection.options import WarmUp
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.request_rules import (
    Labels,
    asks_for_warm_up,
    canonical,
    require_kind,
    require_warm_up,
    without_labels,
)
from lipt.core.selection.strategy import OF_A_MODEL, Need, Strategy

# Needs that a model's forward pass or a proxy provides.
OF_A_PROXY = OF_A_MODEL - {Need.GRADIENT_NORMS}


@dataclass(frozen=True)
class Question:
    """The requested subset: `budget` examples by a strategy on given weights.

    weights: theta_p or the user's own; theta* if an ordinary warm-up starts from it.
    features: the user's own, in place of the model's.
    preset: the source of the options, for the record.
    proxy: computes the signals; None for the weights with their own head.
    backbone: identity of the operator's network, if the proxy may use it.
    trajectories, initial: the learners and theta*, if the strategy or proxy may use them.
    teacher: the proxy whose head gives soft labels, if requested.
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
        """The proxy; None if neither a head nor a soup is used."""
        return self.proxy or (str(SOUP) if self.labels is None else None)

    @property
    def needs(self) -> frozenset[Need]:
        """The inputs of the strategy with these options."""
        strategy = find_strategy(self.strategy)
        return strategy.needs_for(strategy.parse_options(dict(self.options)))


@dataclass(frozen=True)
class SubsetQuery:
    """A trainer's request.

    weights: of the run's model, in place of theta_p.
    features: the user's own, in place of the model's.
    previous: digest of the trainer's current subset, or empty.
    preset: one of the strategy's, for options that are not given; empty for the defaults.
    proxy: computes the signals; the strategy's default if empty.
    labels: `none` if they may not enter the choice.
    soft_labels: whether a ridge head's probabilities are added as training targets.
    """

    run: str
    strategy: str
    fraction: float | None
    budget: int | None
    balanced: bool | None
    options: Mapping[str, str]
    weights: BlobName | None
    features: BlobName | None = None
    previous: str = ""
    preset: str = ""
    proxy: str = ""
    labels: str = ""
    soft_labels: bool = False

    def budget_of(self, num_examples: int) -> int:
        """The number of requested examples."""
        return resolve_budget(fraction=self.fraction, budget=self.budget, num_examples=num_examples)

    def options_of(self, strategy: Strategy, num_examples: int) -> Mapping[str, str]:
        """The preset's options for this budget, overridden by given ones."""
        share = self.budget_of(num_examples) / num_examples
        preset = strategy.preset(self.preset)
        options: Mapping[str, str] = preset.options(share, canonical(strategy, self.options))
        return options


def question_of(
    run: Outcome,
    query: SubsetQuery,
    num_examples: int,
    *,
    backbone: str | None,
    kind: TargetKind = TargetKind.CLASS,
    max_warm_up_epochs: float = math.inf,
) -> Question:
    """The question of a query about a run; LiptError, with a remedy, if it has no answer."""
    strategy = find_strategy(query.strategy)
    given = query.options_of(strategy, num_examples)
    labels, warm_up = Labels.parse(query.labels), WarmUp.among(given)
    if warm_up is not None:
        require_warm_up(
            warm_up,
            strategy,
            strategy.needs_for(strategy.parse_options(given)),
            run,
            labels=labels,
            proxy=query.proxy,
            own_weights=query.weights is not None,
            own_features=query.features is not None,
            max_epochs=max_warm_up_epochs,
        )
    if labels is Labels.NONE:
        given, proxy = without_labels(
            strategy,
            given,
            balanced=query.balanced,
            proxy=query.proxy,
            own_features=query.features is not None,
            own_weights=query.weights is not None,
            images=isinstance(run.inputs, ImageFormat),
        )
        balanced = False
    else:
        require_kind(strategy, given, kind)
        proxy = Proxy.parse(query.proxy or strategy.proxy)
        wanted = strategy.preset(query.preset).balanced
        balanced = strategy.resolve_balance(wanted if query.balanced is None else query.balanced)
    teacher = None
    if query.soft_labels:
        _require_soft_labels(labels, kind)
        teacher = proxy.teacher
    needs = strategy.needs_for(strategy.parse_options(given))
    if not needs & OF_A_PROXY:
        proxy = SOUP
    # The same before and after the learners have trained.
    before_learners = warm_up is not None or needs_no_learners(query)
    weights = query.weights or (run.initial_weights if before_learners else run.pretrained_weights)
    if run.inputs is None or weights is None:
        raise ValueError(f"run {run.name} is asked about without weights")
    judge = teacher or proxy
    return Question(
        config=run.config,
        inputs=run.inputs,
        weights=weights,
        strategy=strategy.name,
        budget=query.budget_of(num_examples),
        balanced=balanced,
        options=tuple(sorted(given.items())),
        preset=query.preset or None,
        features=query.features,
        trajectories=_trajectories(run, weights, strategy.name, needs, judge),
        proxy=None if proxy.is_own_head else str(proxy),
        backbone=backbone if judge.may_use(Kind.BACKBONE) else None,
        labels=None if labels is Labels.GIVEN else labels,
        initial=weights if warm_up is not None else initial_for(judge, run),
        teacher=None if teacher is None else str(teacher),
    )


def _require_soft_labels(labels: Labels, kind: TargetKind) -> None:
    if labels is Labels.NONE:
        raise InvalidRequestError(
            "soft labels are made of labels, which this request leaves out. Ask for one of the two."
        )
    if kind is not TargetKind.CLASS:
        raise InvalidRequestError(
            f"soft labels are probabilities of classes, and the data is {kind.words} data. Ask "
            "without them."
        )


def initial_for(proxy: Proxy, run: Outcome) -> BlobName | None:
    """A run's theta*, if a proxy uses it: `auto` only if theta* started from given weights."""
    given = run.config.initialization.weights_sha256 is not None
    asked = Kind.INITIAL in (proxy.features or ())
    return run.initial_weights if asked or (given and proxy.features is None) else None


class Training(Enum):
    """Training that a query needs."""

    NOTHING = 0
    INITIAL_WEIGHTS = 1
    LEARNERS = 2


def training_for(query: SubsetQuery, num_examples: int) -> Training:
    """Training for a query: nothing if labels, columns or patches are enough."""
    if needs_no_learners(query):
        return Training.INITIAL_WEIGHTS
    strategy = find_strategy(query.strategy)
    given = query.options_of(strategy, num_examples)
    needs = strategy.needs_for(strategy.parse_options(given))
    if Labels.parse(query.labels) is Labels.NONE:
        return Training.NOTHING
    if query.weights is not None or needs & {Need.DYNAMICS, Need.GRADIENT_NORMS}:
        return Training.LEARNERS
    proxy = Proxy.parse(query.proxy or strategy.proxy)
    if query.soft_labels:
        needs, proxy = needs | {Need.SIGNALS}, proxy.teacher
    if not needs & OF_A_PROXY:
        return Training.NOTHING
    if proxy.is_own_head:
        own = query.features is not None or Need.PAIRED_FEATURES in needs
        looks = needs & {Need.SIGNALS, Need.VALIDATION}
        return Training.NOTHING if own and not looks else Training.LEARNERS
    untrained = {Kind.PATCHES, Kind.COLUMNS, Kind.USER, Kind.BACKBONE}
    known = proxy.features is not None and untrained.issuperset(proxy.features)
    return Training.NOTHING if known else Training.LEARNERS


def needs_no_learners(query: SubsetQuery) -> bool:
    """Whether a query needs only theta* of its run."""
    if asks_for_warm_up(query.options):
        return True
    return bool(query.proxy) and Proxy.parse(query.proxy).judges_before_learners


def _trajectories(
    run: Outcome, weights: BlobName, strategy: str, needs: frozenset[Need], proxy: Proxy
) -> Trajectories | None:
    led_here = weights == run.pretrained_weights
    if Need.DYNAMICS in needs and not led_here:
        raise SignalsError(
            f"strategy {strategy!r} looks at how the learners of run {run.name} came to see the "
            f"data, and the weights {weights.sha256[:12]} are not what they became. Leave "
            "`weights` unset, or choose a strategy that does not need learners: lipt strategies "
            "lists what each one needs."
        )
    if not led_here or not (Need.DYNAMICS in needs or proxy.may_use(Kind.LEARNERS)):
        return None
    return run.trajectories
