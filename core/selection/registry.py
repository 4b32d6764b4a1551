"""Registry: every strategy by name, in the order in which users see them.

Messages and listings are made of this one dict. To add a strategy: its file with a
`STRATEGY`, its line here.
"""

from __future__ import annotations

from lipt.common.errors import UnknownNameError
from lipt.core.selection.strategies import (
    adacore,
    aum,
    auto,
    cal,
    ccs,
    clip_score,
    clipcov,
    craig,
    crest,
    disagreement,
    dual,
    el2n,
    facility_location,
    forgetting,
    glister,
    gradmatch,
    grand,
    graph_cut,
    herding,
    kcenter,
    log_det,
    milo,
    moderate,
    sas,
    stratified,
    subzerocore,
    uncertainty,
    uniform,
    zcore,
)
from lipt.core.selection.strategy import Strategy

_IN_ORDER = (
    # the default
    auto.STRATEGY,
    # baselines
    *(uniform.UNIFORM, uniform.UNIFORM_PER_CLASS),
    # scores of one model
    *(el2n.STRATEGY, grand.STRATEGY),
    *(uncertainty.ENTROPY, uncertainty.MARGIN, uncertainty.LEAST_CONFIDENCE),
    # gradient matching, or descent of the validation loss
    *(adacore.STRATEGY, craig.STRATEGY, crest.STRATEGY, gradmatch.STRATEGY, glister.STRATEGY),
    # coverage of the data
    *(facility_location.STRATEGY, subzerocore.STRATEGY, graph_cut.STRATEGY, log_det.STRATEGY),
    *(kcenter.STRATEGY, herding.STRATEGY, cal.STRATEGY, moderate.STRATEGY, ccs.STRATEGY),
    # random coverage of the features
    *(stratified.STRATEGY, zcore.STRATEGY, milo.STRATEGY),
    # training dynamics of the learners
    *(forgetting.STRATEGY, aum.STRATEGY, dual.STRATEGY, disagreement.STRATEGY),
    # the user's own features
    *(sas.STRATEGY, clipcov.STRATEGY, clip_score.STRATEGY),
)
STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _IN_ORDER}


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        UnknownNameError: there is none; the message lists all.
    """
    if name not in STRATEGIES:
        raise UnknownNameError(
            f"there is no strategy {name!r}. Choose one of: {', '.join(STRATEGIES)}."
        )
    return STRATEGIES[name]
