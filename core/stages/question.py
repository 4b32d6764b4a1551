"""Questions: from a trainer's query to a question with weights and options.

Every error that follows from the query alone is raised here, before anything is computed. Without
labels a strategy sees features and near-duplicates. Anything trained or measured on labels is
rejected then: errors, the soup, the learners, equal shares, and a choice among proxies by accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import (
    InvalidRequestError,
    OverLimitError,
    ProxyError,
    SignalsError,
    StrategyOptionError,
)
from lipt.common.inputs.specs import ImageFormat, InputFormat
from lipt.common.subsets import resolve_budget
from lipt.common.targets.kinds import TargetKind, kinds_in_words
from lipt.core.proxies.proxy import SOUP, FeatureKind, Proxy
from lipt.core.results import PretrainingState, Trajectories
from lipt.core.selection.select import STRATEGIES, find_strategy
from lipt.core.selection.strategy import (
    LIPT,
    MODEL_NEEDS,
    PRETRAINING,
    Balance,
    Need,
    Strategy,
    WarmUp,
)

# Needs that a model's forward pass or a proxy provides.
PROXY_NEEDS = MODEL_NEEDS - {Need.GRADIENT_NORMS}
_NEEDS_WITHOUT_LABELS = frozenset({Need.FEATURES, Need.DUPLICATES})
# theta*, and the weights that it started from, may have been trained on the run's data.
TRAINED_FEATURES = (FeatureKind.SOUP, FeatureKind.INITIAL, FeatureKind.LEARNERS)
# An option: compare examples by features, or by gradients, which contain errors.
_SPACE, _FEATURES = "space", "features"


@dataclass(frozen=True)
class Sources:
    """Inputs of the signals.

    inputs, weights: of the run's models; None without a run.
    features: the user's own, in place of the model's.
    trajectories, initial: the learners, if they led to `weights`, and theta*, if they may be used.
    probabilities: the user's own class probabilities, in place of a head's.
    """

    config: RunConfig
    inputs: InputFormat | None
    weights: BlobName | None
    features: BlobName | None = None
    trajectories: Trajectories | None = None
    initial: BlobName | None = None
    probabilities: BlobName | None = None

    @property
    def num_learners(self) -> int:
        """Number of learners with available features."""
        return 0 if self.trajectories is None else len(self.trajectories.learners)


@dataclass(frozen=True, kw_only=True)
class Question(Sources):
    """The requested subset: `budget` examples by a strategy on given weights.

    weights: theta_p or the user's own; theta* if an ordinary warm-up starts from it.
    warm_up: trains the model that is looked at, in place of LiPT.
    preset: the source of the options, for the record.
    proxy: computes the signals.
    backbone: identity of the operator's network, if the proxy may use it.
    unlabelled: whether labels may not enter the choice.
    num_merged: learners offered to the soup, if `weights` are theta_p.
    teacher: the proxy whose head gives soft labels, if requested.
    has_own_weights: whether `weights` are the request's own, and not theta_p.
    """

    inputs: InputFormat
    weights: BlobName
    strategy: str
    budget: int
    balanced: bool
    options: tuple[tuple[str, str], ...]
    warm_up: WarmUp | None = None
    preset: str | None = None
    proxy: Proxy = SOUP
    backbone: str | None = None
    unlabelled: bool = False
    num_merged: int = 0
    teacher: Proxy | None = None
    has_own_weights: bool = False

    @property
    def needs(self) -> frozenset[Need]:
        """The inputs of the strategy with these options."""
        return find_strategy(self.strategy).needs_of(dict(self.options))


@dataclass(frozen=True)
class SubsetQuery:
    """A trainer's request.

    weights: of the run's model, in place of theta_p.
    features: the user's own, in place of the model's.
    previous: digest of the trainer's current subset, or empty.
    preset: one of the strategy's, for options that are not given; empty for the defaults.
    proxy: computes the signals; the strategy's default if empty.
    labels: `none` if they may not enter the choice; `given`, or empty, if they may.
    soft_labels: whether a ridge head's probabilities are added as training targets.
    probabilities: the user's own class probabilities, in place of a head's.
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
    probabilities: BlobName | None = None

    @property
    def unlabelled(self) -> bool:
        """Whether labels may not enter the choice; InvalidRequestError for another text."""
        if self.labels not in {"", "given", "none"}:
            raise InvalidRequestError(f"labels = {self.labels!r}: choose one of given, none.")
        return self.labels == "none"

    def budget_of(self, num_examples: int) -> int:
        """The number of requested examples."""
        return resolve_budget(fraction=self.fraction, budget=self.budget, num_examples=num_examples)

    def proxy_of(self, strategy: Strategy) -> Proxy:
        """The requested proxy, or the strategy's; never a model's own head beside probabilities."""
        proxy = Proxy.parse(self.proxy or strategy.proxy)
        return proxy if self.probabilities is None else proxy.teacher

    def options_of(self, strategy: Strategy, num_examples: int) -> Mapping[str, str]:
        """The preset's options for this budget, overridden by given ones; without the warm-up."""
        share = self.budget_of(num_examples) / num_examples
        given = {name: text for name, text in self.options.items() if name != PRETRAINING}
        options: Mapping[str, str] = strategy.preset(self.preset).options(share, given)
        return options

    def warm_up_of(self, strategy: Strategy) -> WarmUp | None:
        """The ordinary warm-up among the options; StrategyOptionError if it is invalid."""
        text = self.options.get(PRETRAINING, LIPT)
        if text != LIPT and not strategy.can_be_warmed_up:
            raise StrategyOptionError(
                f"strategy {strategy.name!r} looks at no model that a warm-up could train: leave "
                f"{PRETRAINING!r} out. {_choose(lambda other: other.can_be_warmed_up)}"
            )
        return strategy.parse_warm_up(text)


def question_of(
    run: PretrainingState,
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
    unlabelled, warm_up = query.unlabelled, query.warm_up_of(strategy)
    if warm_up is not None:
        _require_warm_up(warm_up, strategy.needs_of(given), run, query, max_warm_up_epochs)
    if query.probabilities is not None:
        _require_use_of_probabilities(query, strategy.needs_of(given), warm_up)
    if unlabelled:
        images = isinstance(run.inputs, ImageFormat)
        given, proxy = without_labels(strategy, given, query, images=images)
        balanced = False
    else:
        require_kind(strategy, given, kind)
        proxy = query.proxy_of(strategy)
        wanted = strategy.preset(query.preset).balanced
        balanced = strategy.resolve_balance(wanted if query.balanced is None else query.balanced)
    teacher = None
    if query.soft_labels:
        _require_soft_labels(query, kind)
        teacher = proxy.teacher
    needs = strategy.needs_of(given)
    if not needs & PROXY_NEEDS:
        proxy = SOUP
    # By the query alone: the same before and after the learners have trained.
    before_learners = training_for(query, num_examples) is not NeededTraining.LEARNERS
    weights = query.weights or (run.initial_weights if before_learners else run.pretrained_weights)
    if run.inputs is None or weights is None:
        raise ValueError(f"run {run.name} is asked about without weights")
    signal_proxy = teacher or proxy
    return Question(
        config=run.config,
        inputs=run.inputs,
        weights=weights,
        strategy=strategy.name,
        budget=query.budget_of(num_examples),
        balanced=balanced,
        options=tuple(sorted(given.items())),
        warm_up=warm_up,
        preset=query.preset or None,
        features=query.features,
        trajectories=_trajectories(run, weights, strategy.name, needs, signal_proxy),
        proxy=proxy,
        backbone=backbone if signal_proxy.may_use(FeatureKind.BACKBONE) else None,
        unlabelled=unlabelled,
        num_merged=len(run.learners) if weights == run.pretrained_weights else 0,
        initial=weights if warm_up is not None else initial_for(signal_proxy, run),
        teacher=teacher,
        has_own_weights=query.weights not in {None, run.pretrained_weights},
        probabilities=query.probabilities,
    )


def works_without_labels(strategy: Strategy) -> bool:
    """Whether a strategy can choose without labels by default."""
    return _can(strategy, _among_features(strategy, {}))


def without_labels(
    strategy: Strategy, options: Mapping[str, str], query: SubsetQuery, *, images: bool = True
) -> tuple[Mapping[str, str], Proxy]:
    """The options (with `space`) and the proxy of a query; LiptError if they depend on labels."""
    resolved = _among_features(strategy, options)
    if not _can(strategy, resolved):
        raise InvalidRequestError(
            f"strategy {strategy.name!r} cannot choose with labels=none: it looks at labels or "
            f"errors. {_choose(works_without_labels)}"
        )
    if query.balanced:
        raise StrategyOptionError(
            "balanced=true and labels=none were both given: without labels classes are unknown. "
            "Leave `balanced` unset."
        )
    if query.weights is not None:
        raise InvalidRequestError(
            "weights and labels=none were both given: weights are trained on labels. Give features "
            "of a network that has not seen these labels (--features FILE, or features=)."
        )
    plain = FeatureKind.PATCHES if images else FeatureKind.COLUMNS
    if not query.proxy:
        return resolved, Proxy((plain,)) if query.features is None else SOUP
    proxy = Proxy.parse(query.proxy)
    trained = [kind for kind in TRAINED_FEATURES if kind in (proxy.features or (FeatureKind.SOUP,))]
    if proxy.features is None or trained:
        why = f"labels have gone into {' and '.join(trained)}"
        if proxy.features is None:
            why = "it is whichever is right about the most labels"
        others = ", ".join(kind for kind in FeatureKind if kind not in TRAINED_FEATURES)
        raise ProxyError(
            f"the proxy {proxy} is unavailable with labels=none: {why}. Choose ridge: and one or "
            f"more of {others}, joined by +, such as ridge:{plain}; or leave it out."
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
        f"strategy {strategy.name!r}{given} works with {kinds_in_words(kinds)} data, and the "
        f"coordinator's is {kind.words}. {_choose(lambda other: kind in other.kinds_of({}))}"
    )


def _require_warm_up(
    warm_up: WarmUp,
    needs: frozenset[Need],
    run: PretrainingState,
    query: SubsetQuery,
    max_epochs: float,
) -> None:
    """Reject a warm-up that contradicts the rest of the request, or costs over `max_epochs`."""
    strategy = find_strategy(query.strategy)
    asked, own_features = f"{PRETRAINING}={warm_up}", query.features is not None
    proxied = bool(query.proxy) and not Proxy.parse(query.proxy).is_own_head
    for other, is_given, why in (
        ("labels=none", query.unlabelled, "a warm-up trains on all labels"),
        ("weights", query.weights is not None, "select on the warm-up's model, or on yours"),
        (f"the proxy {query.proxy}", proxied, "a warm-up's model has its own head, soup"),
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
    one = f"Ask for one model, {PRETRAINING}={WarmUp(warm_up.epochs)}"
    if warm_up.models > 1 and not strategy.averages:
        raise StrategyOptionError(
            f"strategy {strategy.name!r} has no mean over {warm_up.models} models ({asked}). "
            f"{one}, or {_choose(lambda other: other.averages).lower()}"
        )
    if warm_up.models > 1 and run.config.initialization.weights_sha256 is not None:
        raise InvalidRequestError(
            f"{asked} needs {warm_up.models} random initial weights, and run {run.name} begins "
            f"with given ones. {one}."
        )
    if warm_up.counted_epochs > max_epochs:
        raise OverLimitError(
            f"{asked} takes {warm_up.counted_epochs:g} epochs of training (a model counts as one "
            f"at least), and limits.warm_up_epochs allows {max_epochs:g}. Ask for fewer."
        )


def _require_use_of_probabilities(
    query: SubsetQuery, needs: frozenset[Need], warm_up: WarmUp | None
) -> None:
    """Reject probabilities that contradict the rest of the request, or would not be used."""
    own_head = bool(query.proxy) and Proxy.parse(query.proxy).is_own_head
    for other, is_given, why in (
        ("labels=none", query.unlabelled, "a model that gives them has seen labels"),
        (f"{PRETRAINING}={warm_up}", warm_up is not None, "a warm-up's model has its own head"),
        (f"the proxy {query.proxy}", own_head, "it is a model with its own head"),
    ):
        if is_given:
            raise InvalidRequestError(
                f"pred_probs and {other} were both given: {why}. Leave one of them out."
            )
    if Need.SIGNALS not in needs and not query.soft_labels:
        raise InvalidRequestError(
            f"strategy {query.strategy!r} reads no class probabilities with these options: "
            f"pred_probs would change nothing. Leave them out, or choose auto, el2n or another "
            "strategy that looks at errors."
        )


def _require_soft_labels(query: SubsetQuery, kind: TargetKind) -> None:
    if query.unlabelled:
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


class NeededTraining(Enum):
    """Training that a query needs."""

    NOTHING = 0
    INITIAL_WEIGHTS = 1
    LEARNERS = 2


def training_for(query: SubsetQuery, num_examples: int) -> NeededTraining:
    """Training for a query: nothing if labels, columns or patches are enough."""
    strategy = find_strategy(query.strategy)
    given = query.options_of(strategy, num_examples)
    needs = strategy.needs_of(given)
    if query.warm_up_of(strategy) is not None:
        return NeededTraining.INITIAL_WEIGHTS
    if query.unlabelled:
        return NeededTraining.NOTHING
    if Need.DYNAMICS in needs:
        return NeededTraining.LEARNERS
    if query.weights is not None:
        return NeededTraining.INITIAL_WEIGHTS
    proxy = query.proxy_of(strategy)
    if query.soft_labels:
        needs, proxy = needs | {Need.SIGNALS}, proxy.teacher
    kinds = (FeatureKind.SOUP,) if proxy.features is None else proxy.features
    trained = set(kinds).intersection(TRAINED_FEATURES)
    if trained == {FeatureKind.INITIAL}:
        return NeededTraining.INITIAL_WEIGHTS
    if Need.GRADIENT_NORMS in needs:
        return NeededTraining.LEARNERS
    if not needs & PROXY_NEEDS:
        return NeededTraining.NOTHING
    if proxy.is_own_head:
        own = query.features is not None or Need.PAIRED_FEATURES in needs
        looks = needs & {Need.SIGNALS, Need.VALIDATION}
        return NeededTraining.NOTHING if own and not looks else NeededTraining.LEARNERS
    return NeededTraining.LEARNERS if trained else NeededTraining.NOTHING


def _trajectories(
    run: PretrainingState, weights: BlobName, strategy: str, needs: frozenset[Need], proxy: Proxy
) -> Trajectories | None:
    led_here = weights == run.pretrained_weights
    if Need.DYNAMICS in needs and not led_here:
        raise SignalsError(
            f"strategy {strategy!r} uses the learners of run {run.name}, but the weights "
            f"{weights.sha256[:12]} are not their soup. Leave `weights` unset, or choose a "
            "strategy without learners from `lipt strategies`."
        )
    if not led_here or not (Need.DYNAMICS in needs or proxy.may_use(FeatureKind.LEARNERS)):
        return None
    return run.trajectories
