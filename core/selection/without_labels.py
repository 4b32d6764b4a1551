"""Without labels: which requests can be answered where no label may enter the choice.

Who can pay for the labels of K examples has to choose them before there are any. A strategy then
sees features, and which images are near copies, of examples that are all of one class. What was
trained or measured on labels is out: errors, the soup, the learners, equal shares of the classes,
and a choice among proxies by how often they are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from lipt.common.errors import InvalidRequestError, ProxyError, StrategyOptionError
from lipt.core.proxies.proxy import SOUP, Kind, Proxy
from lipt.core.selection.registry import STRATEGIES
from lipt.core.selection.strategy import Balance, Need, Strategy

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
    """The options, with the only space that there is without labels."""
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
