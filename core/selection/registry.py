"""Registry: every strategy by name, in the order of listings.

Users' own strategies follow. `strategy` registers one when its module is imported. All processes of
the service import the modules that entry points of the group `lipt.strategy` name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from lipt.common.errors import UnknownNameError
from lipt.common.text import did_you_mean
from lipt.core.selection.selection import Selection
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
    zcore,
)
from lipt.core.selection.strategy import Strategy

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
)
STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _BUILT_IN}
# Names of strategies elsewhere that are not alike.
_OTHER_NAMES = {"random": "uniform", "balanced": "uniform_per_class", "coreset": "kcenter"}
ENTRY_POINTS = "lipt.strategy"


def strategy(**about: Any) -> Callable[[Callable[..., Selection]], Strategy]:
    """Register the decorated function as a strategy, by its name.

    Args:
        about: the fields of `Strategy` besides the function; `summary` at least.

    Raises:
        ValueError: a strategy of this package has that name.
    """

    def register(function: Callable[..., Selection]) -> Strategy:
        found = Strategy(function, **about)
        if STRATEGIES.get(found.name) in _BUILT_IN:
            raise ValueError(f"there is a strategy {found.name!r} already. Rename the function.")
        STRATEGIES[found.name] = found
        return found

    return register


def find_strategy(name: str) -> Strategy:
    """The strategy of that name; UnknownNameError with all names if there is none."""
    if name not in STRATEGIES:
        meant = _OTHER_NAMES.get(name)
        hint = f" Did you mean {meant}?" if meant else did_you_mean(name, STRATEGIES)
        raise UnknownNameError(
            f"there is no strategy {name!r}.{hint} Choose one of: {', '.join(STRATEGIES)}."
        )
    return STRATEGIES[name]


def _import_registered() -> None:
    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()


_import_registered()
