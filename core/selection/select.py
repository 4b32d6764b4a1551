"""Select: the strategies by name, and the subset that one chooses by signals and a budget.

`strategy` registers a user's own strategy when its module is imported. All processes of the service
import the modules that entry points of the group `lipt.strategy` name.

Shapes: N examples, C classes, D features, K budget.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import Tensor

from lipt.common.computation import computed
from lipt.common.determinism import derive_seed
from lipt.common.errors import ConfigError, SignalsError, UnknownNameError
from lipt.common.requests import require_budget
from lipt.common.text import did_you_mean
from lipt.core.passes import require_finite_rows, row_blocks
from lipt.core.selection.selection import Selection, class_shares, joined
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
from lipt.core.selection.strategy import Need, Strategy
from lipt.core.selection.user_strategies import require_selection, user_strategy
from lipt.core.signals.signals import Signals
from lipt.core.signals.targeted import TargetSignals

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
        about: the fields of `Strategy` besides the function; `summary` at least. `needs` and
            `kinds` take names: needs=["features"].

    Raises:
        ConfigError: a field or an option is invalid, or a strategy of this package has that name.
    """

    def register(function: Callable[..., Selection]) -> Strategy:
        found = user_strategy(function, about)
        if STRATEGIES.get(found.name) in _BUILT_IN:
            raise ConfigError(f"there is a strategy {found.name!r} already. Rename the function.")
        STRATEGIES[found.name] = found
        return found

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
    for need in sorted(strategy.needs_for(values)):
        for model in (signals, *signals.others):
            for name, tensor in _values(model, need).items():
                if tensor is None or not tensor.numel():
                    raise SignalsError(
                        f"strategy {strategy.name!r} needs {name}. {_REMEDIES.get(need, _REMEDY)}"
                    )
                _require_finite(tensor, name)
    if strategy.prepare is not None:
        signals = _call(strategy.prepare, signals, seed=seed, **values)
    choose: Callable[..., Selection] = partial(_choose, strategy, balanced=balanced, **values)
    if balanced and not strategy.balances_itself:
        parts = list(_choose_per_class(choose, signals, budget, seed))
    else:
        parts = [choose(signals, budget, seed=seed)]
    told = parts[0].is_random
    return replace(joined(parts), is_random=strategy.is_random if told is None else told)


def _call(function: Callable[..., Any], *arguments: Any, **given: Any) -> Any:
    """Call a function with those of the keywords that it takes."""
    parameters = inspect.signature(function).parameters
    return function(*arguments, **{name: given[name] for name in parameters if name in given})


def _choose_per_class(
    choose: Callable[..., Selection], signals: Signals, budget: int, seed: int
) -> Iterator[Selection]:
    for label, rows, quota in class_shares(signals.labels_N, budget):
        own_seed = derive_seed(seed, "selection-class", label)
        part = choose(signals.of_class(label), quota, seed=own_seed)
        reason = f"class {label}: {part.stopped_early}" if part.stopped_early else ""
        yield Selection(rows.cpu()[part.indices_K], part.weights_K, stopped_early=reason)


def _choose(strategy: Strategy, signals: Signals, budget: int, **given: Any) -> Selection:
    found = _call(strategy.function, signals, budget, **given)
    return require_selection(strategy.name, found, budget, len(signals))


def _require_finite(values: Tensor, name: str) -> None:
    row_bytes = values[0].numel() * values.element_size()
    blocks = list(row_blocks(len(values), row_bytes))
    # A sum is not finite if one of its terms is not: usually no further check is needed.
    sums = [
        values[rows].sum(dtype=torch.promote_types(values.dtype, torch.float32)) for rows in blocks
    ]
    if bool(torch.stack(sums).isfinite().all()):
        return
    finite_N = torch.cat(
        [values[rows].reshape(rows.stop - rows.start, -1).isfinite().all(dim=-1) for rows in blocks]
    )
    require_finite_rows(finite_N, torch.arange(len(values)), name)


_REMEDY = "They were not computed: compute them first, or give your own."
_REMEDIES = {
    Need.VALIDATION: "The run has none: set validation.fraction above 0.",
    Need.DYNAMICS: "Only a run with learners has it, on its own weights: leave `weights` unset.",
    Need.PAIRED_FEATURES: (
        "Give a safetensors file with the tensors `features` and `paired_features`, a row per "
        "example: `lipt subset get --features FILE.safetensors`, or client.subset(features=...)."
    ),
}


def _values(signals: Signals, need: Need) -> Mapping[str, Tensor | None]:
    held, dynamics = signals.validation, signals.dynamics
    match need:
        case Need.SIGNALS:
            return {"errors": signals.errors_NC, "features": signals.features_ND}
        case Need.FEATURES:
            return {"features": signals.features_ND}
        case Need.GRADIENT_NORMS:
            return {"gradient norms": signals.gradient_norms_N}
        case Need.PAIRED_FEATURES:
            pairs_NP = signals.paired_features_NP
            return {"features of pairs": signals.features_ND, "paired features": pairs_NP}
        case Need.DUPLICATES:
            return {"near-duplicates": signals.duplicate_group_N}
        case Need.VALIDATION if held is not None:
            values = _values(held, Need.SIGNALS)
            return {f"{name} of validation examples": values[name] for name in values}
        case Need.VALIDATION:
            return {"a validation split": None}
        case Need.DYNAMICS if dynamics is not None:
            words = {name.rpartition("_")[0].replace("_", " "): name for name in vars(dynamics)}
            return {f"the learners' {word}": getattr(dynamics, words[word]) for word in words}
        case Need.DYNAMICS:
            return {"the learners' view of the examples": None}
        case _:
            return _targeted_values(signals, need)


def _targeted_values(signals: Signals, need: Need) -> Mapping[str, Tensor | None]:
    of = signals.targeted or TargetSignals()
    values: Mapping[Need, Mapping[str, Tensor | None]] = {
        Need.LOSSES: {"losses": of.losses_N},
        Need.PROMPTS: {"losses without prompts": of.unprompted_N},
        Need.TARGET_LOSSES: {"losses after a target": of.after_NP},
        Need.TARGET_FEATURES: {
            "features": of.features_ND,
            "features of a target": of.target_features_MD,
        },
        Need.TARGET_WORDS: {"words": of.words_NW, "words of a target": of.target_words_MW},
    }
    return values[need]


def _import_registered() -> None:
    for entry in entry_points(group="lipt.strategy"):
        entry.load()


_import_registered()
