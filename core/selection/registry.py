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
    entropy,
    facility_location,
    forgetting,
    glister,
    gradmatch,
    grand,
    graph_cut,
    herding,
    kcenter,
    least_confidence,
    log_det,
    margin,
    milo,
    moderate,
    sas,
    stratified,
    subzerocore,
    uniform,
    uniform_per_class,
    zcore,
)
from lipt.core.selection.strategy import Strategy

STRATEGIES: dict[str, Strategy] = {
    module.STRATEGY.name: module.STRATEGY
    for module in (
        # the default
        auto,
        # baselines
        *(uniform, uniform_per_class),
        # scores of one model
        *(el2n, grand, entropy, margin, least_confidence),
        # what matches gradients, or follows the validation loss
        *(adacore, craig, crest, gradmatch, glister),
        # what covers the data
        *(facility_location, subzerocore, graph_cut, log_det, kcenter, herding, cal, moderate, ccs),
        # what covers the features, at random
        *(stratified, zcore, milo),
        # what the learners say
        *(forgetting, aum, dual, disagreement),
        # what the user's own features say
        *(sas, clipcov, clip_score),
    )
}


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
