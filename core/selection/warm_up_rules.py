"""Warm-ups asked for: which questions may have an ordinary warm-up in place of theta_p.

Every refusal is one sentence with what to do about it, made before anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipt.common.errors import InvalidRequestError, OverLimitError, StrategyOptionError
from lipt.core.proxies.proxy import Proxy
from lipt.core.results import Outcome
from lipt.core.selection.registry import STRATEGIES
from lipt.core.selection.strategy import OF_A_MODEL, Need, Strategy
from lipt.core.selection.warm_up_option import LIPT, NAME, WarmUp
from lipt.core.selection.without_labels import Labels


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
