"""Resolving a request: what a choice is made of, decided once before anything is computed.

Every error that follows from the request alone is raised here. Without labels a strategy sees
features and near-duplicates. Anything trained or measured on labels is rejected then: errors, the
soup, the learners, equal shares, and a choice among proxies by accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import (
    InvalidRequestError,
    OverLimitError,
    ProxyError,
    SignalsError,
    StrategyOptionError,
)
from lipt.common.requests import (
    PRETRAINING,
    SOUP,
    FeatureKind,
    LabelUse,
    Proxy,
    SubsetRequest,
    WarmUp,
)
from lipt.core.pretraining.results import PretrainingState, Trajectories
from lipt.core.selection.select import STRATEGIES, find_strategy
from lipt.core.selection.strategies.targeted import DEFAULT_STEPS, STEPS, loss_drop
from lipt.core.selection.strategy import Balance, Strategy
from lipt.core.signals.views import INITIAL_NEEDS, MODEL_NEEDS, TARGET_NEEDS, THETA_NEEDS, Need
from lipt.data.inputs.specs import ImageSpec, InputFormat, InputSpec
from lipt.data.targets.kinds import TargetKind, kinds_in_words

# Needs that a model's forward pass or a proxy provides.
PROXY_NEEDS = MODEL_NEEDS - {Need.GRADIENT_NORMS}
_NEEDS_WITHOUT_LABELS = frozenset({Need.FEATURES, Need.DUPLICATES})
# theta*, and the weights that it started from, may have been trained on the run's data.
TRAINED_FEATURES = (FeatureKind.SOUP, FeatureKind.INITIAL, FeatureKind.LEARNERS)
# An option: compare examples by features, or by gradients, which contain errors.
_SPACE, _FEATURES = "space", "features"


class NeededTraining(Enum):
    """Training that a request needs."""

    NOTHING = 0
    INITIAL_WEIGHTS = 1
    LEARNERS = 2


@dataclass(frozen=True, kw_only=True)
class ResolvedRequest:
    """A request whose every choice is made, and found possible for the data.

    options: values of all of the strategy's options. given: those of the request and its preset.
    needs: the strategy's inputs with these options.
    training: what has to be trained before.
    proxy: computes the signals. teacher: the proxy whose head gives soft labels, if requested.
    warm_up: trains the model that is looked at, in place of LiPT.
    weights, features, probabilities: the user's own.
    mixture: a file with the sources' shares.
    targets: files of a target's parts. target_steps: of the short learner on each.
    """

    strategy: str
    preset: str
    options: Mapping[str, Any]
    given: Mapping[str, str]
    needs: frozenset[Need]
    budget: int
    balanced: bool
    unlabelled: bool
    training: NeededTraining
    proxy: Proxy
    teacher: Proxy | None
    warm_up: WarmUp | None
    weights: BlobName | None
    features: BlobName | None
    probabilities: BlobName | None
    mixture: BlobName | None
    targets: tuple[BlobName, ...] = ()
    target_steps: int = 0

    @property
    def signal_proxy(self) -> Proxy:
        """The proxy that looks at the most: the teacher, if there is one."""
        return self.teacher or self.proxy


@dataclass(frozen=True)
class Sources:
    """The inputs of signals.

    inputs, weights: of the run's models; None without a run. The weights are theta_p, the user's
    own, or theta* where an ordinary warm-up starts from it.
    features: the user's own, in place of the model's.
    trajectories, initial: the learners, if they led to `weights`, and theta*, if they may be used.
    probabilities: the user's own class probabilities, in place of a head's.
    backbone: identity of the operator's network, if the proxy may use it.
    num_merged: learners offered to the soup, if `weights` are theta_p.
    has_own_weights: whether `weights` are the request's own, and not theta_p.
    """

    config: RunConfig
    inputs: InputFormat | None
    weights: BlobName | None
    features: BlobName | None = None
    trajectories: Trajectories | None = None
    initial: BlobName | None = None
    probabilities: BlobName | None = None
    backbone: str | None = None
    num_merged: int = 0
    has_own_weights: bool = False

    @property
    def num_learners(self) -> int:
        """Number of learners with available features."""
        return 0 if self.trajectories is None else len(self.trajectories.learners)

    @property
    def untrained(self) -> Sources:
        """These without the run's weights and learners, and without a backbone."""
        return Sources(self.config, self.inputs, None, self.features, None, self.initial)

    @property
    def model(self) -> tuple[InputFormat, BlobName]:
        """Inputs and weights of the run's model."""
        if self.inputs is None or self.weights is None:
            raise ValueError("signals of a run's model are asked for without a run")
        return self.inputs, self.weights


def resolve(
    request: SubsetRequest,
    config: RunConfig,
    *,
    num_examples: int,
    inputs: InputSpec,
    kind: TargetKind,
    max_warm_up_epochs: float = math.inf,
) -> ResolvedRequest:
    """Resolve a request about a run's data; LiptError, with a remedy, if it has no answer."""
    strategy = _strategy_of(request)
    budget = request.budget.of(num_examples)
    preset = strategy.preset(request.preset)
    given: Mapping[str, str] = preset.options(budget / num_examples, request.options)
    needs = strategy.needs_of(given)
    _require_targets(strategy, needs, request)
    unlabelled, warm_up = request.labels is LabelUse.NONE, request.warm_up
    if warm_up is not None:
        _require_warm_up(warm_up, strategy, needs, request, config, max_warm_up_epochs)
    if request.probabilities is not None:
        _require_use_of_probabilities(strategy, request, needs)
    if unlabelled:
        images = isinstance(inputs, ImageSpec)
        given, proxy = without_labels(strategy, given, request, images=images)
        balanced = False
    else:
        require_kind(strategy, given, kind)
        proxy = request.proxy or Proxy.parse(strategy.proxy)
        if request.probabilities is not None:
            # Never a model's own head beside probabilities.
            proxy = proxy.teacher
        asks_balance = preset.balanced if request.balanced is None else request.balanced
        balanced = strategy.resolve_balance(asks_balance)
    teacher = None
    if request.soft_labels:
        _require_soft_labels(request, kind)
        teacher = proxy.teacher
    options = strategy.parse_options(given)
    needs = strategy.needs_for(options)
    return ResolvedRequest(
        strategy=strategy.name,
        preset=request.preset,
        options=options,
        given=given,
        needs=needs,
        budget=budget,
        balanced=balanced,
        unlabelled=unlabelled,
        training=_training_for(request, needs, proxy, teacher),
        proxy=proxy if needs & PROXY_NEEDS else SOUP,
        teacher=teacher,
        warm_up=warm_up,
        weights=request.weights,
        features=request.features,
        probabilities=request.probabilities,
        mixture=request.mixture,
        targets=request.targets,
        target_steps=options.get(STEPS, DEFAULT_STEPS) if Need.TARGET_LOSSES in needs else 0,
    )


def sources_of(
    run: PretrainingState, request: ResolvedRequest, *, backbone: str | None = None
) -> Sources:
    """A run's inputs for a request; SignalsError if its learners led to other weights."""
    # By the request alone: the same before and after the learners have trained.
    before_learners = request.training is not NeededTraining.LEARNERS
    theta_p, proxy = run.pretrained_weights, request.signal_proxy
    weights = request.weights or (run.initial_weights if before_learners else theta_p)
    if run.inputs is None or weights is None:
        raise ValueError(f"run {run.name} is asked about without weights")
    return Sources(
        config=run.config,
        inputs=run.inputs,
        weights=weights,
        features=request.features,
        trajectories=_trajectories(run, weights, request),
        initial=weights if request.warm_up is not None else initial_for(proxy, run),
        probabilities=request.probabilities,
        backbone=backbone if proxy.may_use(FeatureKind.BACKBONE) else None,
        num_merged=len(run.learners) if weights == theta_p else 0,
        has_own_weights=request.weights not in {None, theta_p},
    )


def works_without_labels(strategy: Strategy) -> bool:
    """Whether a strategy can choose without labels by default."""
    return _can(strategy, _among_features(strategy, {}))


def without_labels(
    strategy: Strategy, options: Mapping[str, str], request: SubsetRequest, *, images: bool = True
) -> tuple[Mapping[str, str], Proxy]:
    """The options (with `space`) and the proxy of a request; LiptError if they depend on labels."""
    resolved = _among_features(strategy, options)
    if not _can(strategy, resolved):
        raise InvalidRequestError(
            f"strategy {strategy.name!r} cannot choose with labels=none: it looks at labels or "
            f"errors. {_choose(works_without_labels)}"
        )
    if request.balanced:
        raise StrategyOptionError(
            "balanced=true and labels=none were both given: without labels classes are unknown. "
            "Leave `balanced` unset."
        )
    if request.weights is not None:
        raise InvalidRequestError(
            "weights and labels=none were both given: weights are trained on labels. Give features "
            "of a network that has not seen these labels (--features FILE, or features=)."
        )
    plain = FeatureKind.PATCHES if images else FeatureKind.COLUMNS
    proxy = request.proxy
    if proxy is None:
        return resolved, Proxy((plain,)) if request.features is None else SOUP
    trained = [kind for kind in TRAINED_FEATURES if kind in (proxy.features or (FeatureKind.SOUP,))]
    if proxy.features is None or trained:
        why = f"labels have gone into {' and '.join(trained)}"
        if proxy.features is None:
            why = "it is whichever is right about the most labels"
        alternatives = ", ".join(kind for kind in FeatureKind if kind not in TRAINED_FEATURES)
        raise ProxyError(
            f"the proxy {proxy} is unavailable with labels=none: {why}. Choose ridge: and one or "
            f"more of {alternatives}, joined by +, such as ridge:{plain}; or leave it out."
        )
    return resolved, proxy


def _can(strategy: Strategy, options: Mapping[str, str]) -> bool:
    able = strategy.needs_of(options) <= _NEEDS_WITHOUT_LABELS
    return able and strategy.balance is not Balance.ALWAYS


def _among_features(strategy: Strategy, options: Mapping[str, str]) -> Mapping[str, str]:
    if all(option.name != _SPACE for option in strategy.options):
        return options
    given = options.get(_SPACE, _FEATURES)
    if given != _FEATURES:
        raise StrategyOptionError(
            f"option {_SPACE} of strategy {strategy.name!r} cannot be {given!r} with labels=none: "
            f"gradients need labels. Leave it out, or give {_FEATURES!r}."
        )
    return {**options, _SPACE: _FEATURES}


def _choose(able: Callable[[Strategy], bool]) -> str:
    names = (name for name, strategy in STRATEGIES.items() if able(strategy))
    return f"Choose one of: {', '.join(names)}."


def require_kind(strategy: Strategy, options: Mapping[str, str], kind: TargetKind) -> None:
    """InvalidRequestError if the strategy with these options cannot use the data's targets."""
    kinds = strategy.kinds_of(options)
    if kind in kinds:
        return
    with_options = ", ".join(f"{name}={value}" for name, value in sorted(options.items()))
    given = f" with {with_options}" if with_options else ""
    raise InvalidRequestError(
        f"strategy {strategy.name!r}{given} works with {kinds_in_words(kinds)} data, and "
        f"the data is {kind.words}. {_choose(lambda other: kind in other.kinds_of({}))}"
    )


def _strategy_of(request: SubsetRequest) -> Strategy:
    """The strategy that a request names; with a target the default is that of targets."""
    named = find_strategy(request.strategy)
    return loss_drop if request.targets and request.strategy == SubsetRequest.strategy else named


def _require_targets(strategy: Strategy, needs: frozenset[Need], request: SubsetRequest) -> None:
    """Reject what the strategy does not look at, and a strategy that lacks a target."""
    for name, given in (("a proxy", request.proxy), ("features", request.features)):
        if needs & INITIAL_NEEDS and given is not None and not request.soft_labels:
            raise InvalidRequestError(
                f"strategy {strategy.name!r} looks at theta* alone, and {name} would change "
                "nothing. Leave it out."
            )
    asks = bool(needs & TARGET_NEEDS)
    if asks == bool(request.targets):
        return
    able = ", ".join(
        name
        for name, able_strategy in STRATEGIES.items()
        if able_strategy.needs_of({}) & TARGET_NEEDS
    )
    if asks:
        raise InvalidRequestError(
            f"strategy {strategy.name!r} needs examples of what you care about. Give target_data "
            "(--target-data), or choose another strategy."
        )
    raise InvalidRequestError(
        f"strategy {strategy.name!r} does not look at target_data. Leave one of them out, or "
        f"choose one of: {able}."
    )


def _require_warm_up(
    warm_up: WarmUp,
    strategy: Strategy,
    needs: frozenset[Need],
    request: SubsetRequest,
    config: RunConfig,
    max_epochs: float,
) -> None:
    """Reject a warm-up that contradicts the rest of the request, or costs over `max_epochs`."""
    if not strategy.can_be_warmed_up:
        raise StrategyOptionError(
            f"strategy {strategy.name!r} looks at no model that a warm-up could train: leave "
            f"{PRETRAINING!r} out. {_choose(lambda other: other.can_be_warmed_up)}"
        )
    asked, own_features = f"{PRETRAINING}={warm_up}", request.features is not None
    proxied = request.proxy is not None and not request.proxy.is_own_head
    for other, is_given, why in (
        ("labels=none", request.labels is LabelUse.NONE, "a warm-up trains on all labels"),
        ("weights", request.weights is not None, "select on the warm-up's model, or on yours"),
        (f"the proxy {request.proxy}", proxied, "a warm-up's model has its own head, soup"),
    ):
        if is_given:
            raise InvalidRequestError(
                f"{asked} and {other} were both given: {why}. Leave one of them out."
            )
    if Need.DYNAMICS in needs:
        raise StrategyOptionError(
            f"strategy {strategy.name!r} needs the run's learners with these options, and {asked} "
            f"has none. Leave {PRETRAINING!r} or those options out."
        )
    if not needs & (MODEL_NEEDS - {Need.FEATURES} if own_features else MODEL_NEEDS):
        raise InvalidRequestError(
            f"strategy {strategy.name!r} uses no model here: {asked} would change "
            f"nothing. Leave {PRETRAINING!r} out{', or the features' if own_features else ''}."
        )
    remedy = f"Ask for one model, {PRETRAINING}={WarmUp(warm_up.epochs)}"
    if warm_up.models > 1 and not strategy.averages:
        raise StrategyOptionError(
            f"strategy {strategy.name!r} has no mean over {warm_up.models} models ({asked}). "
            f"{remedy}, or {_choose(lambda other: other.averages).lower()}"
        )
    if warm_up.models > 1 and config.initialization.weights_sha256 is not None:
        raise InvalidRequestError(
            f"{asked} needs {warm_up.models} random initial weights, and the run begins with given "
            f"ones. {remedy}."
        )
    if warm_up.counted_epochs > max_epochs:
        raise OverLimitError(
            f"{asked} takes {warm_up.counted_epochs:g} epochs of training (a model counts as one "
            f"at least), and limits.warm_up_epochs allows {max_epochs:g}. Ask for fewer."
        )


def _require_use_of_probabilities(
    strategy: Strategy, request: SubsetRequest, needs: frozenset[Need]
) -> None:
    """Reject probabilities that contradict the rest of the request, or would not be used."""
    own_head = request.proxy is not None and request.proxy.is_own_head
    warm_up = request.warm_up
    for other, is_given, why in (
        ("labels=none", request.labels is LabelUse.NONE, "a model that gives them has seen labels"),
        (f"{PRETRAINING}={warm_up}", warm_up is not None, "a warm-up's model has its own head"),
        (f"the proxy {request.proxy}", own_head, "it is a model with its own head"),
    ):
        if is_given:
            raise InvalidRequestError(
                f"pred_probs and {other} were both given: {why}. Leave one of them out."
            )
    if Need.SIGNALS not in needs and not request.soft_labels:
        raise InvalidRequestError(
            f"strategy {strategy.name!r} reads no class probabilities with these options: "
            f"pred_probs would change nothing. Leave them out, or choose auto, el2n or another "
            "strategy that looks at errors."
        )


def _require_soft_labels(request: SubsetRequest, kind: TargetKind) -> None:
    if request.labels is LabelUse.NONE:
        raise InvalidRequestError(
            "soft labels are made of labels, which this request leaves out. Ask for one of the two."
        )
    if kind is not TargetKind.CLASS:
        raise InvalidRequestError(
            f"soft labels are probabilities of classes, and the data is {kind.words} data. Ask "
            "without them."
        )


def initial_for(proxy: Proxy, run: PretrainingState) -> BlobName | None:
    """A run's theta*, if a proxy uses it: `auto` only if theta* started from given weights."""
    given = run.config.initialization.weights_sha256 is not None
    asked = FeatureKind.INITIAL in (proxy.features or ())
    return run.initial_weights if asked or (given and proxy.features is None) else None


def needs_of_head(features: BlobName | None, needs: frozenset[Need]) -> frozenset[Need]:
    """Needs that a model with its own head meets; of features only where none are given."""
    own = features is not None or Need.PAIRED_FEATURES in needs
    return needs & ({Need.SIGNALS, Need.VALIDATION} if own else PROXY_NEEDS)


def _training_for(
    request: SubsetRequest, needs: frozenset[Need], proxy: Proxy, teacher: Proxy | None
) -> NeededTraining:
    """Training for a request: nothing if labels, columns or patches are enough."""
    if request.warm_up is not None:
        return NeededTraining.INITIAL_WEIGHTS
    if request.labels is LabelUse.NONE:
        return NeededTraining.NOTHING
    if Need.DYNAMICS in needs:
        return NeededTraining.LEARNERS
    if request.weights is not None or (needs & THETA_NEEDS and teacher is None):
        return NeededTraining.INITIAL_WEIGHTS
    if teacher is not None:
        needs, proxy = needs | {Need.SIGNALS}, teacher
    kinds = (FeatureKind.SOUP,) if proxy.features is None else proxy.features
    trained = set(kinds).intersection(TRAINED_FEATURES)
    if trained == {FeatureKind.INITIAL}:
        return NeededTraining.INITIAL_WEIGHTS
    if Need.GRADIENT_NORMS in needs:
        return NeededTraining.LEARNERS
    if not needs & PROXY_NEEDS:
        return NeededTraining.NOTHING
    if proxy.is_own_head:
        looks = needs_of_head(request.features, needs)
        return NeededTraining.LEARNERS if looks else NeededTraining.NOTHING
    return NeededTraining.LEARNERS if trained else NeededTraining.NOTHING


def _trajectories(
    run: PretrainingState, weights: BlobName, request: ResolvedRequest
) -> Trajectories | None:
    led_here, needs = weights == run.pretrained_weights, request.needs
    if Need.DYNAMICS in needs and not led_here:
        raise SignalsError(
            f"strategy {request.strategy!r} uses the learners of run {run.name}, but the weights "
            f"{weights.sha256[:12]} are not their soup. Leave `weights` unset, or choose a "
            "strategy without learners from `lipt strategies`."
        )
    used = Need.DYNAMICS in needs or request.signal_proxy.may_use(FeatureKind.LEARNERS)
    return run.trajectories if led_here and used else None
