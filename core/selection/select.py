"""Select: the strategies by name, and the subset that one chooses by signals and a budget.

`strategy` registers a user's own strategy when its module is imported. All processes of the service
import the modules that entry points of the group `lipt.strategy` name.

Shapes: N examples, C classes, D features, K budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from torch import Tensor

from lipt.common.computation import computed
from lipt.common.determinism import derive_seed
from lipt.common.errors import ConfigError, UnknownNameError
from lipt.common.requests import require_budget
from lipt.common.text import did_you_mean
from lipt.core.selection.selection import Selection, joined
from lipt.core.selection.strategies import (
    auto,
    crest,
    facility_location,
    glister,
    gradmatch,
    greedy,
    latent_classes,
    learners,
    random_draws,
    scores,
    targeted,
    zcore,
)
from lipt.core.selection.strategy import Strategy, call
from lipt.core.selection.user_strategies import require_selection, user_strategy
from lipt.core.signals.signals import Signals
from lipt.core.signals.views import ValidationSignals, View
from lipt.data.groups import class_shares

_BUILT_IN = (
    # the default
    auto.auto,
    # baselines
    *(random_draws.uniform, random_draws.uniform_per_class),
    # scores of one model
    *(scores.el2n, scores.grand, scores.entropy, scores.margin, scores.least_confidence),
    # gradient matching, or descent of the validation loss
    *(facility_location.adacore, facility_location.craig),
    *(crest.crest, gradmatch.gradmatch, glister.glister),
    # coverage of the data
    *(facility_location.facility_location, facility_location.subzerocore),
    *(greedy.graph_cut, greedy.log_det, greedy.kcenter),
    *(greedy.herding, scores.cal, scores.moderate, random_draws.ccs),
    # random coverage of the features
    *(random_draws.stratified, zcore.zcore, greedy.milo),
    # training dynamics of the learners
    *(learners.forgetting, learners.aum, learners.dual, learners.disagreement),
    # the user's own features
    *(latent_classes.sas, latent_classes.clipcov, latent_classes.clip_score),
    # a target, or theta* alone
    *(targeted.loss_drop, targeted.rds_plus, targeted.bm25, targeted.perplexity, targeted.ifd),
)
STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _BUILT_IN}
# Names of strategies elsewhere that are not alike.
_OTHER_NAMES = {"random": "uniform", "balanced": "uniform_per_class", "coreset": "kcenter"}


def strategy(function: Callable[..., Selection] | None = None, /, **about: Any) -> Any:
    """Register the decorated function as a strategy, by its name.

    Args:
        function: the function, where `strategy` is called and not used as a decorator.
        about: the fields of `Strategy` besides the function; `summary` at least. `kinds` takes
            names: kinds=["class"].

    Raises:
        ConfigError: a field or an option is invalid, or a strategy of this package has that name.
    """

    def register(function: Callable[..., Selection]) -> Strategy:
        registered = user_strategy(function, about)
        if STRATEGIES.get(registered.name) in _BUILT_IN:
            raise ConfigError(
                f"there is a strategy {registered.name!r} already. Rename the function."
            )
        STRATEGIES[registered.name] = registered
        return registered

    return register if function is None else register(function)


def find_strategy(name: str) -> Strategy:
    """The strategy of that name; UnknownNameError with all names if there is none."""
    if name not in STRATEGIES:
        meant = _OTHER_NAMES.get(name)
        hint = f" Did you mean {meant}?" if meant else did_you_mean(name, STRATEGIES)
        all_of_them = f" Choose one of: {', '.join(STRATEGIES)}."
        more = f"{hint} `lipt strategies` lists all." if hint else all_of_them
        raise UnknownNameError(f"there is no strategy {name!r}.{more}")
    return STRATEGIES[name]


@computed
def select(
    strategy: Strategy,
    signals: Signals,
    budget: int,
    *,
    balanced: bool,
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> Selection:
    """Choose exactly `budget` examples, or fewer with a reason; rows ascending, on the CPU.

    Balanced, a strategy sees one class at a time, unless it balances by itself. `options` are
    values, as `Strategy.parse_options` returns them; others keep their defaults. BudgetError if the
    budget is outside 1..N, SignalsError if signals are missing, or not finite.
    """
    require_budget(budget, len(signals))
    values = {**strategy.parse_options({}), **(options or {})}
    views = strategy.views(signals, {"seed": seed, **values})
    choose: Callable[..., Selection] = partial(_choose, strategy, balanced=balanced, **values)
    if balanced and not strategy.balances_itself:
        parts = list(_choose_per_class(choose, views, signals.labels_N, budget, seed))
    else:
        parts = [choose(views, budget, len(signals), seed=seed)]
    was_random = parts[0].is_random
    return replace(
        joined(parts), is_random=strategy.is_random if was_random is None else was_random
    )


def _choose_per_class(
    choose: Callable[..., Selection],
    views: Sequence[View],
    labels_N: Tensor,
    budget: int,
    seed: int,
) -> Iterator[Selection]:
    for label, rows, quota in class_shares(labels_N, budget):
        of_class = [
            view.of_class(label) if isinstance(view, ValidationSignals) else view.take(rows)
            for view in views
        ]
        own_seed = derive_seed(seed, "selection-class", label)
        part = choose(of_class, quota, len(rows), seed=own_seed)
        reason = f"class {label}: {part.stopped_early}" if part.stopped_early else ""
        yield Selection(rows.cpu()[part.indices_K], part.weights_K, stopped_early=reason)


def _choose(
    strategy: Strategy, views: Sequence[View], budget: int, num_examples: int, **given: Any
) -> Selection:
    selection = call(strategy.function, *views, budget, **given)
    return require_selection(strategy.name, selection, budget, num_examples)


def _import_registered() -> None:
    for entry in entry_points(group="lipt.strategy"):
        entry.load()


_import_registered()
