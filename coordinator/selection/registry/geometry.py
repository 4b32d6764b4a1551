"""What covers the data, by geometry, submodular functions or strata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lipt.coordinator.selection.strategies.cal import cal
from lipt.coordinator.selection.strategies.ccs import ccs, ccs_needs
from lipt.coordinator.selection.strategies.facility_location import facility_location
from lipt.coordinator.selection.strategies.graph_cut import graph_cut
from lipt.coordinator.selection.strategies.herding import herding
from lipt.coordinator.selection.strategies.kcenter import kcenter
from lipt.coordinator.selection.strategies.log_det import log_det
from lipt.coordinator.selection.strategies.moderate import moderate
from lipt.coordinator.selection.strategy import FEATURES, SIGNALS, Need, Strategy


def _space_needs(options: Mapping[str, Any]) -> frozenset[Need]:
    return FEATURES if options["space"] == "features" else SIGNALS


GEOMETRY = (
    Strategy(
        name="facility_location",
        function=facility_location,
        summary="one example like each of all others, by gradient or feature",
        paper=(
            'Wei et al. 2015, "Submodularity in Data Subset Selection and Active Learning" (ICML)'
        ),
        cost="N^2 (C + d)",
        needs=_space_needs,
    ),
    Strategy(
        name="graph_cut",
        function=graph_cut,
        summary="like all examples but not like each other, by gradient or feature",
        paper=(
            'Iyer et al. 2021, "Submodular Combinatorial Information Measures with '
            'Applications in Machine Learning" (arXiv:2006.15412)'
        ),
        cost="N k (C + d)",
        needs=_space_needs,
    ),
    Strategy(
        name="log_det",
        function=log_det,
        summary="directions that span the largest volume, by gradient or feature",
        paper=(
            'Chen et al. 2018, "Fast Greedy MAP Inference for Determinantal Point Process to '
            'Improve Recommendation Diversity" (arXiv:1709.05135)'
        ),
        cost="N k (C + d + k)",
        needs=_space_needs,
    ),
    Strategy(
        name="kcenter",
        function=kcenter,
        summary="repeatedly the example farthest from all chosen ones",
        paper=(
            'Sener and Savarese 2018, "Active Learning for Convolutional Neural Networks: A '
            'Core-Set Approach" (arXiv:1708.00489)'
        ),
        cost="N k d",
        needs=_space_needs,
    ),
    Strategy(
        name="herding",
        function=herding,
        summary="features whose mean is that of all",
        paper='Welling 2009, "Herding Dynamical Weights to Learn" (ICML)',
        cost="N k d",
        needs=lambda _: FEATURES,
    ),
    Strategy(
        name="cal",
        function=cal,
        summary="predictions that differ most from those of the nearest neighbors",
        paper=(
            'Margatina et al. 2021, "Active Learning by Acquiring Contrastive Examples" '
            "(arXiv:2109.03764)"
        ),
        cost="N^2 d",
    ),
    Strategy(
        name="moderate",
        function=moderate,
        summary="kept: closest to their class's median distance from its center",
        paper=(
            'Xia et al. 2023, "Moderate Coreset: A Universal Method of Data Selection for '
            'Real-world Data-efficient Deep Learning" (ICLR)'
        ),
        cost="N d",
        needs=lambda _: FEATURES,
    ),
)

COVERAGE = (
    Strategy(
        name="ccs",
        function=ccs,
        summary="random, equal shares of every stratum of a score without its hardest end",
        paper=(
            'Zheng et al. 2023, "Coverage-centric Coreset Selection for High Pruning Rates" '
            "(arXiv:2210.15809)"
        ),
        cost="N (C + log N)",
        needs=ccs_needs,
    ),
)
