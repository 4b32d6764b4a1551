"""Every strategy by name. Messages and listings are made from this one dict.

To add a strategy: its file, its entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lipt.common.errors import UnknownNameError
from lipt.coordinator.selection.adacore import adacore, precondition
from lipt.coordinator.selection.aum import aum
from lipt.coordinator.selection.cal import cal
from lipt.coordinator.selection.ccs import ccs, ccs_needs
from lipt.coordinator.selection.clipcov import clipcov, pair_terms
from lipt.coordinator.selection.craig import craig
from lipt.coordinator.selection.crest import crest
from lipt.coordinator.selection.disagreement import disagreement
from lipt.coordinator.selection.dual import dual
from lipt.coordinator.selection.el2n import el2n
from lipt.coordinator.selection.entropy import entropy
from lipt.coordinator.selection.facility_location import facility_location
from lipt.coordinator.selection.forgetting import forgetting
from lipt.coordinator.selection.glister import glister
from lipt.coordinator.selection.gradmatch import gradmatch, gradmatch_needs
from lipt.coordinator.selection.grand import grand
from lipt.coordinator.selection.graph_cut import graph_cut
from lipt.coordinator.selection.herding import herding
from lipt.coordinator.selection.kcenter import kcenter
from lipt.coordinator.selection.least_confidence import least_confidence
from lipt.coordinator.selection.log_det import log_det
from lipt.coordinator.selection.margin import margin
from lipt.coordinator.selection.moderate import moderate
from lipt.coordinator.selection.sas import sas
from lipt.coordinator.selection.strategy import (
    FEATURES,
    NOTHING,
    SIGNALS,
    Balance,
    Need,
    Strategy,
)
from lipt.coordinator.selection.uniform import uniform
from lipt.coordinator.selection.uniform_per_class import uniform_per_class


def _el2n_needs(options: Mapping[str, Any]) -> frozenset[Need]:
    return _DYNAMICS if options["models"] == "learners" else SIGNALS


def _grand_needs(options: Mapping[str, Any]) -> frozenset[Need]:
    return frozenset({Need.GRADIENT_NORMS}) if options["parameters"] == "all" else SIGNALS


def _space_needs(options: Mapping[str, Any]) -> frozenset[Need]:
    return FEATURES if options["space"] == "features" else SIGNALS


_DYNAMICS = frozenset({Need.DYNAMICS})
_DATA_DIET = 'Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075)'

_SELECTION_VIA_PROXY = (
    'Coleman et al. 2020, "Selection via Proxy: Efficient Data Selection for Deep Learning" '
    "(arXiv:1906.11829)"
)

_BASELINES = (
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

_SCORES = (
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

_GRADIENT_MATCHING = (
    Strategy(
        name="adacore",
        function=adacore,
        summary="craig on gradients divided by an estimate of the Hessian's diagonal",
        paper=(
            'Pooladzandi et al. 2022, "Adaptive Second Order Coresets for Data-efficient Machine '
            'Learning" (arXiv:2207.13887)'
        ),
        cost="N^2 (C + d)",
        returns_weights=True,
        prepare=precondition,
    ),
    Strategy(
        name="craig",
        function=craig,
        summary="nearest to all gradients, weighted by how many each one stands for",
        paper=(
            'Mirzasoleiman et al. 2020, "Coresets for Data-efficient Training of Machine Learning '
            'Models" (arXiv:1906.01827)'
        ),
        cost="N^2 (C + d)",
        returns_weights=True,
    ),
    Strategy(
        name="crest",
        function=crest,
        summary="mini-batch coresets of random sets of what is not learned yet",
        paper=(
            'Yang et al. 2023, "Towards Sustainable Learning: Coresets for Data-efficient Deep '
            'Learning" (arXiv:2306.01244)'
        ),
        cost="N + k C",
        returns_weights=True,
        rechecks=True,
    ),
    Strategy(
        name="gradmatch",
        function=gradmatch,
        summary="few weighted gradients that add up to all, by orthogonal matching pursuit",
        paper=(
            'Killamsetty et al. 2021, "GRAD-MATCH: Gradient Matching based Data Subset Selection '
            'for Efficient Deep Model Training" (arXiv:2103.00123)'
        ),
        cost="k N (C + d + k)",
        returns_weights=True,
        needs=gradmatch_needs,
    ),
)

_BILEVEL = (
    Strategy(
        name="glister",
        function=glister,
        summary="gradient steps that lower the validation loss the most, layer updated on the way",
        paper=(
            'Killamsetty et al. 2021, "GLISTER: Generalization based Data Subset Selection for '
            'Efficient and Robust Learning" (arXiv:2012.10630)'
        ),
        cost="r N C d",
        needs=lambda _: frozenset({Need.SIGNALS, Need.VALIDATION}),
    ),
)

_GEOMETRY = (
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

_COVERAGE = (
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

_LEARNERS = (
    Strategy(
        name="forgetting",
        function=forgetting,
        summary="most often right and then wrong again while learners train; never right first",
        paper=(
            'Toneva et al. 2019, "An Empirical Study of Example Forgetting during Deep Neural '
            'Network Learning" (arXiv:1812.05159)'
        ),
        cost="N",
        needs=lambda _: _DYNAMICS,
    ),
    Strategy(
        name="aum",
        function=aum,
        summary="smallest mean margin of the own label's logit while learners train",
        paper=(
            'Pleiss et al. 2020, "Identifying Mislabeled Data using the Area Under the Margin '
            'Ranking" (arXiv:2001.10528)'
        ),
        cost="N",
        needs=lambda _: _DYNAMICS,
    ),
    Strategy(
        name="dual",
        function=dual,
        summary="hard and uncertain while learners train, drawn easier the fewer are kept",
        paper=(
            'Cho et al. 2025, "Lightweight Dataset Pruning without Full Training via Example '
            'Difficulty and Prediction Uncertainty" (arXiv:2502.06905)'
        ),
        cost="N",
        needs=lambda _: _DYNAMICS,
    ),
    Strategy(
        name="disagreement",
        function=disagreement,
        summary="largest variance of the probabilities among the learners",
        paper=(
            'Lakshminarayanan et al. 2017, "Simple and Scalable Predictive Uncertainty '
            'Estimation using Deep Ensembles" (arXiv:1612.01474)'
        ),
        cost="N",
        needs=lambda _: _DYNAMICS,
    ),
)

_SELF_SUPERVISED = (
    Strategy(
        name="sas",
        function=sas,
        summary="most similar to what is not selected of the same latent class",
        paper=(
            'Joshi & Mirzasoleiman 2023, "Data-Efficient Contrastive Self-supervised Learning: '
            'Most Beneficial Examples for Supervised Learning Contribute the Least" '
            "(arXiv:2302.09195)"
        ),
        cost="k N d",
        needs=lambda _: FEATURES,
    ),
    Strategy(
        name="clipcov",
        function=clipcov,
        summary="image-caption pairs that preserve the cross-covariance of their latent class",
        paper=(
            'Joshi et al. 2024, "Data-Efficient Contrastive Language-Image Pretraining: '
            'Prioritizing Data Quality over Quantity" (arXiv:2403.12267)'
        ),
        cost="k N d",
        needs=lambda _: frozenset({Need.PAIRED_FEATURES}),
        prepare=pair_terms,
    ),
)

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        *_BASELINES,
        *_SCORES,
        *_GRADIENT_MATCHING,
        *_BILEVEL,
        *_GEOMETRY,
        *_COVERAGE,
        *_LEARNERS,
        *_SELF_SUPERVISED,
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
