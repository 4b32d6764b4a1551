"""Random baselines and the scores of one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lipt.coordinator.selection.strategies.el2n import el2n
from lipt.coordinator.selection.strategies.entropy import entropy
from lipt.coordinator.selection.strategies.grand import grand
from lipt.coordinator.selection.strategies.least_confidence import least_confidence
from lipt.coordinator.selection.strategies.margin import margin
from lipt.coordinator.selection.strategies.uniform import uniform
from lipt.coordinator.selection.strategies.uniform_per_class import uniform_per_class
from lipt.coordinator.selection.strategy import NOTHING, SIGNALS, Balance, Need, Strategy


def _el2n_needs(options: Mapping[str, Any]) -> frozenset[Need]:
    return _DYNAMICS if options["models"] == "learners" else SIGNALS


def _grand_needs(options: Mapping[str, Any]) -> frozenset[Need]:
    return frozenset({Need.GRADIENT_NORMS}) if options["parameters"] == "all" else SIGNALS


_DYNAMICS = frozenset({Need.DYNAMICS})

_DATA_DIET = 'Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075)'

_SELECTION_VIA_PROXY = (
    'Coleman et al. 2020, "Selection via Proxy: Efficient Data Selection for Deep Learning" '
    "(arXiv:1906.11829)"
)

BASELINES = (
    Strategy(
        name="uniform",
        function=uniform,
        summary="random examples",
        paper="",
        cost="N",
        balance=Balance.NEVER,
        needs=lambda _: NOTHING,
    ),
    Strategy(
        name="uniform_per_class",
        function=uniform_per_class,
        summary="random examples, equal shares of every class",
        paper="",
        cost="N",
        balance=Balance.ALWAYS,
        needs=lambda _: NOTHING,
    ),
)

SCORES = (
    Strategy(
        name="el2n",
        function=el2n,
        summary="largest error norm |softmax - onehot|, of the merged model or of the learners",
        paper=_DATA_DIET,
        cost="N C",
        needs=_el2n_needs,
    ),
    Strategy(
        name="grand",
        function=grand,
        summary="largest gradient norm, by the last layer or by all parameters",
        paper=_DATA_DIET,
        cost="N (C + d)",
        needs=_grand_needs,
    ),
    Strategy(
        name="entropy",
        function=entropy,
        summary="most uncertain: largest entropy of the probabilities",
        paper=_SELECTION_VIA_PROXY,
        cost="N C",
    ),
    Strategy(
        name="margin",
        function=margin,
        summary="most uncertain: smallest margin between the two largest probabilities",
        paper=_SELECTION_VIA_PROXY,
        cost="N C",
    ),
    Strategy(
        name="least_confidence",
        function=least_confidence,
        summary="most uncertain: smallest probability of the most likely class",
        paper=_SELECTION_VIA_PROXY,
        cost="N C",
    ),
)
