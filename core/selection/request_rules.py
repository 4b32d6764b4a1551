"""Request rules: choices without labels, for other targets than classes, after a warm-up.

Requests are rejected before anything is computed. Without labels a strategy sees features and
near-duplicates. Anything trained or measured on labels is rejected: errors, the soup, the learners,
equal shares, and a choice among proxies by accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Self

from lipt.common.errors import InvalidRequestError, OverLimitError, ProxyError, StrategyOptionError
from lipt.common.targets.kinds import TargetKind, kinds_in_words
from lipt.core.proxies.proxy import SOUP, Kind, Proxy
from lipt.core.results import Outcome
from lipt.core.selection.options import LIPT, PRETRAINING, WarmUp
from lipt.core.selection.registry import STRATEGIES
from lipt.core.selection.strategy import OF_A_MODEL, Balance, Need, Strategy

_MADE_WITHOUT_LABELS = frozenset({Need.FEATURES, Need.COPIES})
# theta*, and the weights that it started from, may have been trained on the run's data.
_TRAINED_ON_LABELS = (Kind.SOUP, Kind.INITIAL, Kind.LEARNERS)
# Of strategies that compare examples by features or by gradients, which contain errors.
_SPACE, _FEATURES = "space", "features"


class Labels(StrEnum):
    """Whether labels may enter a choice."""

    GIVEN = "given"
    NONE = "none"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a request's `labels`, `given` if empty; InvalidRequestError if unknown."""
        if text and text not in set(cls):
            raise InvalidRequestError(f"labels = {text!r}: choose one of {', '.join(cls)}.")
        return cls(text or cls.GIVEN)


def works_without_labels(strategy: Strategy) -> bool:
    """Whether a strategy can choose without labels by default."""
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
) -> tuple[Mapping[str, str], Proxy]:
    """The options (with `space`) and the proxy of a request; LiptError if they depend on labels."""
    resolved = _among_features(strategy, options)
    if not _can(strategy, resolved):
        raise InvalidRequestError(
            f"strategy {strategy.name!r} cannot choose with labels=none: it looks at labels or "
            f"errors. {_choose(works_without_labels)}"
        )
    if balanced:
        raise StrategyOptionError(
            "balanced=true and labels=none were both given: without labels classes are unknown. "
            "Leave `balanced` unset."
        )
    if own_weights:
        raise InvalidRequestError(
            "weights and labels=none were both given: weights are trained on labels. Give features "
            "of a network that has not seen these labels (--features FILE, or features=)."
        )
    plain = Kind.PATCHES if images else Kind.COLUMNS
    if not proxy:
        return resolved, SOUP if own_features else Proxy((plain,))
    parsed = Proxy.parse(proxy)
    if why := _labels_in(parsed):
        others = ", ".join(kind for kind in Kind if kind not in _TRAINED_ON_LABELS)
        raise ProxyError(
            f"the proxy {parsed} is unavailable with labels=none: {why}. Choose ridge: and one or "
            f"more of {others}, joined by +, such as ridge:{plain}; or leave it out."
        )
    return resolved, parsed


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
            f"gradients need labels. Leave it out, or give {_FEATURES!r}."
        )
    return {**options, _SPACE: _FEATURES}


def _labels_in(proxy: Proxy) -> str:
    """How a proxy's features depend on labels; empty if they do not."""
    if proxy.features is None:
        return "it is whichever is right about the most labels"
    trained = [kind for kind in _TRAINED_ON_LABELS if kind in (proxy.features or (Kind.SOUP,))]
    return f"labels have gone into {' and '.join(trained)}" if trained else ""


def _choose(able: Callable[[Strategy], bool]) -> str:
    names = (name for name, strategy in STRATEGIES.items() if able(strategy))
    return f"Choose one of: {', '.join(names)}."


def require_kind(strategy: Strategy, options: Mapping[str, str], kind: TargetKind) -> None:
    """InvalidRequestError if the strategy with these options cannot use the data's targets."""
    kinds = strategy.kinds_for(strategy.parse_options(options))
    if kind in kinds:
        return
    with_options = ", ".join(f"{name}={value}" for name, value in sorted(options.items()))
    given = f" with {with_options}" if with_options else ""
    raise InvalidRequestError(
        f"strategy {strategy.name!r}{given} works with {kinds_in_words(kinds)} data, and the "
        f"coordinator's is {kind.words}. {_choose(lambda other: kind in other.default_kinds())}"
    )


def asks_for_warm_up(options: Mapping[str, str]) -> bool:
    """Whether unparsed options ask for an ordinary warm-up."""
    return options.get(PRETRAINING, LIPT) != LIPT


def canonical(strategy: Strategy, options: Mapping[str, str]) -> dict[str, str]:
    """The options with the warm-up's canonical text; StrategyOptionError if it is invalid."""
    given = dict(options)
    if asks_for_warm_up(given):
        if not strategy.can_be_warmed_up:
            raise StrategyOptionError(
                f"strategy {strategy.name!r} looks at no model that a warm-up could train: leave "
                f"{PRETRAINING!r} out. {_choose(lambda other: other.can_be_warmed_up)}"
            )
        given[PRETRAINING] = strategy.parse_options({PRETRAINING: given[PRETRAINING]})[PRETRAINING]
    if not asks_for_warm_up(given):
        given.pop(PRETRAINING, None)
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
    """Reject a warm-up that contradicts the rest of the request, or costs over `max_epochs`."""
    asked = f"{PRETRAINING}={warm_up}"
    both = f"{asked} and {{}} were both given: {{}}. Leave one of them out."
    if labels is Labels.NONE:
        raise InvalidRequestError(both.format("labels=none", "a warm-up trains on all labels"))
    if own_weights:
        raise InvalidRequestError(
            both.format("weights", "select on the warm-up's model, or on yours")
        )
    if proxy and not Proxy.parse(proxy).is_own_head:
        raise InvalidRequestError(
            both.format(f"the proxy {proxy}", "a warm-up's model judges by its own head, soup")
        )
    if Need.DYNAMICS in needs:
        raise StrategyOptionError(
            f"strategy {strategy.name!r} needs the run's learners with these options, and {asked} "
            f"has none. Leave {PRETRAINING!r} or those options out."
        )
    if not needs & (OF_A_MODEL - {Need.FEATURES} if own_features else OF_A_MODEL):
        raise InvalidRequestError(
            f"strategy {strategy.name!r} looks at no model here, so that {asked} would change "
            f"nothing. Leave {PRETRAINING!r} out{', or the features' if own_features else ''}."
        )
    one = f"Ask for one model, {PRETRAINING}={WarmUp(warm_up.epochs)}"
    if warm_up.models > 1 and not strategy.averages:
        raise StrategyOptionError(
            f"strategy {strategy.name!r} has no mean over {warm_up.models} models ({asked}). "
            f"{one}. {_choose(lambda other: other.averages)}"
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
