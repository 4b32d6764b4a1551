"""What the learners say of an example, and what the user's own features say."""

from __future__ import annotations

from lipt.coordinator.selection.strategies.aum import aum
from lipt.coordinator.selection.strategies.clipcov import clipcov, pair_terms
from lipt.coordinator.selection.strategies.disagreement import disagreement
from lipt.coordinator.selection.strategies.dual import dual
from lipt.coordinator.selection.strategies.forgetting import forgetting
from lipt.coordinator.selection.strategies.sas import sas
from lipt.coordinator.selection.strategy import FEATURES, Need, Strategy

_DYNAMICS = frozenset({Need.DYNAMICS})

LEARNERS = (
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

SELF_SUPERVISED = (
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
