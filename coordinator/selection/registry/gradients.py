"""What matches gradients, or follows the validation loss."""

from __future__ import annotations

from lipt.coordinator.selection.strategies.adacore import adacore, precondition
from lipt.coordinator.selection.strategies.craig import craig
from lipt.coordinator.selection.strategies.crest import crest
from lipt.coordinator.selection.strategies.glister import glister
from lipt.coordinator.selection.strategies.gradmatch import gradmatch, gradmatch_needs
from lipt.coordinator.selection.strategy import Need, Strategy

GRADIENT_MATCHING = (
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

BILEVEL = (
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
