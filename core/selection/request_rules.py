"""Request rules: strategies that can choose without labels, for other targets, after a warm-up.

Every refusal is made before anything is computed, and says what to do about it.

Who can pay for the labels of K examples has to choose them before there are any. A strategy then
sees features, and which images are near copies, of examples that are all of one class. What was
trained or measured on labels is out: errors, the soup, the learners, equal shares of the classes,
and a choice among proxies by how often they are right.

Errors and features are there for all kinds of targets, as a last-layer gradient is residual times
feature. What reads probabilities of classes off them, or asks learners for these, needs classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from lipt.common.errors import InvalidRequestError, OverLimitError, ProxyError, StrategyOptionError
from lipt.common.targets.kinds import TargetKind, kinds_in_words
from lipt.core.proxies.proxy import SOUP, Kind, Proxy
from lipt.core.results import Outcome
from lipt.core.selection.registry import STRATEGIES
from lipt.core.selection.strategy import OF_A_MODEL, Balance, Need, Strategy
from lipt.core.selection.warm_up_option import LIPT, NAME, WarmUp

_MADE_WITHOUT_LABELS = frozenset({Need.FEATURES, Need.COPIES})
# theta* may have been trained on the run's data, and so may weights that it began with.
_TRAINED_ON_LABELS = (Kind.SOUP, Kind.INITIAL, Kind.LEARNERS)
# Of strategies that compare examples by features or by gradients, which are made of errors.
_SPACE, _FEATURES = "space", "features"


class Labels(StrEnum):
    """Whether labels may enter a choice."""

    GIVEN = "given"
    NONE = "none"

    @classmethod
    def parse(cls, text: str) -> Self:
        """What a request says; where it says nothing, labels are given.

        Raises:
            InvalidRequestError: it says something else.
        """
        if text and text not in set(cls):
            raise InvalidRequestError(f"labels = {text!r}: choose one of {', '.join(cls)}.")
        return cls(text or cls.GIVEN)


@dataclass(frozen=True)
class Unlabelled:
    """What a request comes to.

    options: the strategy's, texts by name; `space` is among them where it has one.
    proxy: what makes the features; the soup, which is not looked at, where they are the
        user's own as they are.
    """

    options: Mapping[str, str]
    proxy: Proxy


def works_without_labels(strategy: Strategy) -> bool:
    """Whether a strategy can choose when it sees no labels; its options have their defaults."""
    return _can(strategy, _among_features(strategy, {}))


def without_labels(
    strategy: Strategy,
    options: Mapping[str, str],
    *,
    balanced: bool | None,
    proxy: str,
    own_features: bool,
    own_weights: bool,
    images: bool = True,
) -> Unlabelled:
    """What a request that no label may enter comes to; classes are not balanced.

    Args:
        strategy: what is to choose.
        options: texts by name, as given.
        balanced: what the user says of it; None where that is nothing.
        proxy: what the user says of it; empty where that is nothing.
        own_features: whether the request brings features.
        own_weights: whether it brings weights to select on.
        images: whether that is what examples are.

    Raises:
        InvalidRequestError: the strategy looks at labels, with a list of those that do not; or
            there are weights to select on.
        StrategyOptionError: an option does not exist or asks for gradients, or classes are to
            be balanced.
        ProxyError: there is no such proxy, or it was trained or chosen by labels.
    """
    resolved = _among_features(strategy, options)
    if not _can(strategy, resolved):
        able = (name for name, known in STRATEGIES.items() if works_without_labels(known))
        raise InvalidRequestError(
            f"strategy {strategy.name!r} cannot choose with labels=none: it looks at labels, or at "
            f"what a model makes of them. Choose one of: {', '.join(able)}."
        )
    if balanced:
        raise StrategyOptionError(
            "balanced=true and labels=none were both given: which class an example is of is what "
            "its label says. Leave `balanced` unset."
        )
    if own_weights:
        raise InvalidRequestError(
            "weights and labels=none were both given: weights are trained on labels, so nothing "
            "looks at them. Leave `weights` unset, and give the features of a network that has "
            "seen none of these labels (--features FILE, or features=...)."
        )
    return Unlabelled(resolved, _proxy(proxy, own_features=own_features, images=images))


def _can(strategy: Strategy, options: Mapping[str, str]) -> bool:
    needs = strategy.needs_for(strategy.parse_options(options))
    return strategy.balance is not Balance.ALWAYS and needs <= _MADE_WITHOUT_LABELS


def _among_features(strategy: Strategy, options: Mapping[str, str]) -> Mapping[str, str]:
    if all(option.name != _SPACE for option in strategy.options):
        return options
    given = options.get(_SPACE, _FEATURES)
    if given != _FEATURES:
        raise StrategyOptionError(
            f"option {_SPACE} of strategy {strategy.name!r} cannot be {given!r} with labels=none: "
            f"gradients are those of a loss on labels. Leave it out, or give {_FEATURES!r}."
        )
    return {**options, _SPACE: _FEATURES}


def _proxy(text: str, *, own_features: bool, images: bool) -> Proxy:
    plain = Kind.PATCHES if images else Kind.COLUMNS
    if not text:
        return SOUP if own_features else Proxy((plain,))
    proxy = Proxy.parse(text)
    if why := _labels_in(proxy):
        others = ", ".join(kind for kind in Kind if kind not in _TRAINED_ON_LABELS)
        raise ProxyError(
            f"the proxy {proxy} cannot be had with labels=none: {why}. Choose ridge: followed by "
            f"one or more of {others}, joined by +, such as ridge:{plain}; or leave it out, for "
            f"features of your own as they are, or else {plain}."
        )
    return proxy


def _labels_in(proxy: Proxy) -> str:
    """How labels have come into a proxy's features; empty where they have not."""
    if proxy.features is None:
        return "it is whichever is right about the most labels"
    trained = [kind for kind in _TRAINED_ON_LABELS if kind in (proxy.features or (Kind.SOUP,))]
    return f"labels have gone into {' and '.join(trained)}" if trained else ""


def require_kind(strategy: Strategy, options: Mapping[str, str], kind: TargetKind) -> None:
    """Refuse a strategy that needs other targets than there are.

    Args:
        strategy: what is to choose.
        options: texts by name, as given.
        kind: of the data's targets.

    Raises:
        InvalidRequestError: it cannot choose; with those that can.
        StrategyOptionError: an option does not exist, or its value is not allowed.
    """
    kinds = strategy.kinds_for(strategy.parse_options(options))
    if kind in kinds:
        return
    with_options = ", ".join(f"{name}={value}" for name, value in sorted(options.items()))
    given = f" with {with_options}" if with_options else ""
    able = (name for name, known in STRATEGIES.items() if kind in known.default_kinds())
    raise InvalidRequestError(
        f"strategy {strategy.name!r}{given} works with {kinds_in_words(kinds)} data, and the "
        f"coordinator's is {kind.words}. Choose one of: {', '.join(able)}."
    )


def asks_for_warm_up(options: Mapping[str, str]) -> bool:
    """Whether a question's options, not parsed yet, ask for another pre-training than LiPT."""
    return options.get(NAME, LIPT) != LIPT


def canonical(strategy: Strategy, options: Mapping[str, str]) -> dict[str, str]:
    """The options, the warm-up by its one text, and left out where it is LiPT.

    Raises:
        StrategyOptionError: it is none, or the strategy cannot have one.
    """
    given = dict(options)
    if NAME not in given:
        return given
    if given[NAME] == LIPT:
        del given[NAME]
        return given
    if not strategy.can_be_warmed_up:
        able = ", ".join(name for name, known in STRATEGIES.items() if known.can_be_warmed_up)
        raise StrategyOptionError(
            f"strategy {strategy.name!r} cannot choose with {NAME}={given[NAME]}: "
            f"{_why_not(strategy)}. Leave {NAME!r} out, or choose one of: {able}."
        )
    given[NAME] = strategy.parse_options({NAME: given[NAME]})[NAME]
    if given[NAME] == LIPT:
        del given[NAME]
    return given


def require_warm_up(
    warm_up: WarmUp,
    strategy: Strategy,
    needs: frozenset[Need],
    run: Outcome,
    *,
    labels: Labels,
    proxy: str,
    own_weights: bool,
    own_features: bool,
    max_epochs: float,
) -> None:
    """Refuse a warm-up that does not go with what else is asked for, or costs too much.

    Args:
        warm_up: what is asked for.
        strategy: what is to choose by it.
        needs: of the strategy, with its options.
        run: whose model it is.
        labels: whether they may enter the choice.
        proxy: what the question says of it; empty where that is nothing.
        own_weights: whether the question brings weights.
        own_features: whether it brings features.
        max_epochs: the most that may be asked for.

    Raises:
        StrategyOptionError: the strategy does not look at a model, asks the learners as well, or
            has no mean over several models.
        InvalidRequestError: it does not go together with the rest of the question.
        OverLimitError: it is longer than `max_epochs`.
    """
    asked = f"{NAME}={warm_up}"
    if labels is Labels.NONE:
        raise InvalidRequestError(
            f"{asked} and labels=none were both given: a warm-up trains on all labels. Leave one "
            "of them out."
        )
    if own_weights:
        raise InvalidRequestError(
            f"{asked} and weights were both given: either the warm-up's model is looked at, or "
            "yours. Leave one of them out."
        )
    if proxy and not Proxy.parse(proxy).is_own_head:
        raise InvalidRequestError(
            f"{asked} and the proxy {proxy} were both given: a warm-up's model judges by its own "
            "head. Leave `proxy` out, or give the proxy soup."
        )
    if Need.DYNAMICS in needs:
        raise StrategyOptionError(
            f"strategy {strategy.name!r} cannot choose with {asked} and these options: they ask "
            f"the run's learners, of which a warm-up has none. Leave {NAME!r} or those options out."
        )
    if not needs & (OF_A_MODEL - {Need.FEATURES} if own_features else OF_A_MODEL):
        raise InvalidRequestError(
            f"strategy {strategy.name!r} looks at no model here, so that {asked} would change "
            f"nothing. Leave {NAME!r} out{', or the features' if own_features else ''}."
        )
    if warm_up.models > 1 and not strategy.averages:
        able = ", ".join(name for name, known in STRATEGIES.items() if known.averages)
        raise StrategyOptionError(
            f"strategy {strategy.name!r} has no mean over {warm_up.models} models ({asked}). Ask "
            f"for one, {NAME}={WarmUp(warm_up.epochs)}, or choose one of: {able}."
        )
    if warm_up.models > 1 and run.config.initialization.weights_sha256 is not None:
        raise InvalidRequestError(
            f"{asked} asks for {warm_up.models} random beginnings, and run {run.name} begins with "
            f"given weights. Ask for one model, {NAME}={WarmUp(warm_up.epochs)}."
        )
    if warm_up.counted_epochs > max_epochs:
        raise OverLimitError(
            f"{asked} takes {warm_up.counted_epochs:g} epochs of training (a model counts as one "
            f"at least), and limits.warm_up_epochs allows {max_epochs:g}. Ask for fewer epochs or "
            "models, or have the operator raise it."
        )


def _why_not(strategy: Strategy) -> str:
    if Need.DYNAMICS in strategy.default_needs():
        return "it asks the run's learners, of which a warm-up has none"
    if strategy.proxy != "soup":
        return f"it judges by the proxy {strategy.proxy}, not by a model's own head"
    return "it looks at no model"
