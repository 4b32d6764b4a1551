"""SAS: keep the examples that stand for their latent class in contrastive learning.

With similarities s of features in place of expected similarities of augmentations, each latent
class V_c gives the set S_c that maximizes

    F(S_c) = sum_{i in V_c not in S_c} sum_{j in S_c} s_ij,    s_ij = cos(f_i, f_j),

found greedily, with gains that count the picks (the authors' code ranks static row sums). Cosines
may be negative: adding a constant to all similarities changes every gain by the same amount, and
1 + cos makes F submodular. Sums stand for the matrix (see `solvers.linear_cut`).

Shapes: N examples, D features, K budget.
Source: Joshi & Mirzasoleiman 2023 (arXiv:2302.09195).
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import torch
from pydantic import Field

from lipt.common.determinism import derive_generator
from lipt.core.selection.selection import Selection, class_quotas, unweighted
from lipt.core.selection.solvers.linear_cut import (
    cut_picks,
    exact_bits,
    spherical_kmeans,
    unit_rows,
)
from lipt.core.selection.strategy import FEATURES, Strategy
from lipt.core.signals.signals import Signals


def sas(
    signals: Signals,
    budget: int,
    *,
    num_clusters: Annotated[int, Field(ge=0), "clusters of k-means; 0: the classes"] = 0,
    seed: int,
) -> Selection:
    """Share the budget equally among the latent classes, and be greedy within each.

    Balanced, clusters are those of each class. A feature of zeros is similar to nothing.
    """
    latent_N = signals.labels_N
    if num_clusters:
        latent_N = spherical_kmeans(
            signals.features_ND, num_clusters, generator=derive_generator(seed, "sas")
        )
    chosen = []
    for latent, quota in enumerate(class_quotas(torch.bincount(latent_N).tolist(), budget)):
        if not quota:
            continue
        positions = torch.nonzero(latent_N == latent).flatten()
        rows_MD = unit_rows(signals.features_ND[positions], exact_bits(len(positions)))
        nothing_M = torch.zeros(len(positions), dtype=torch.float64, device=rows_MD.device)
        picks = islice(cut_picks(rows_MD, nothing_M, scale=1.0), quota)
        chosen.append(positions[[place for _, place in picks]])
    return unweighted(torch.cat(chosen))


SAS = Strategy(
    function=sas,
    summary="most similar to what is not selected of the same latent class",
    paper=(
        'Joshi & Mirzasoleiman 2023, "Data-Efficient Contrastive Self-supervised Learning: '
        'Most Beneficial Examples for Supervised Learning Contribute the Least" '
        "(arXiv:2302.09195)"
    ),
    cost="k N d",
    needs=FEATURES,
)
