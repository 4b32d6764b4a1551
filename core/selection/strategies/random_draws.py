"""Random draws: plain, class-balanced, stratified, and by strata of a difficulty score (CCS).

CCS covers the range of a difficulty score without its hardest end, where many labels are wrong. The
rest is split into strata of equal width, with equal quotas. Its authors tune beta: 0 where half of
CIFAR-10 is kept, 0.3 for a tenth, 0.2 for a fifth of ImageNet. Interpolating is our choice.

Shapes: N examples, R of them not dropped, G cells, K budget.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.solvers.linear_cut import spherical_kmeans
from lipt.core.selection.strategies.learners import mean_margins
from lipt.core.selection.strategies.scores import error_norms
from lipt.core.selection.strategy import (
    Balance,
    Cost,
    Growth,
    Preset,
    built_in,
)
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.views import ExampleLabels, Features, LastLayer
from lipt.data.groups import class_quotas, draw_from_groups, proportional_quotas
from lipt.data.targets.kinds import TargetKind

# With one pick per cell, every accidental cell would count.
_CHOSEN_PER_CELL = 2
_MOST_CELLS = 256


@built_in(
    summary="random examples",
    cost=Cost(Growth.LINEAR, "N"),
    balance=Balance.NEVER,
    is_random=True,
    kinds=frozenset(TargetKind),
)
def uniform(labels: ExampleLabels, budget: int, *, seed: int) -> Selection:
    """Draw `budget` examples without replacement, all equally likely.

    ResNet-18 on 10% of CIFAR-10 reaches 79-84% so (Zheng et al. 2023, arXiv:2210.15809).
    """
    order_N = torch.randperm(len(labels), generator=derive_generator(seed, "uniform"))
    return unweighted(order_N[:budget])


@built_in(
    summary="random examples, equal shares of every class",
    cost=Cost(Growth.LINEAR, "N"),
    balance=Balance.ALWAYS,
    is_random=True,
)
def uniform_per_class(labels: ExampleLabels, budget: int, *, seed: int) -> Selection:
    """Draw examples of every class in equal shares: the baseline of balanced strategies."""
    return uniform(labels, budget, seed=seed)


@built_in(
    summary="random, a share of every cell of the feature space",
    paper='Cochran 1977, "Sampling Techniques", chapter 5',
    cost=Cost(Growth.ITERATIONS, "N k d"),
    is_random=True,
)
def stratified(
    features: Features,
    budget: int,
    *,
    num_cells: Annotated[
        int, Field(ge=0), "cells of k-means; 0: one for every 2 to choose, at most 256"
    ] = 0,
    shares: Annotated[
        Literal["equal", "proportional"], "what each cell gives: as many as others, or by its size"
    ] = "equal",
    seed: int,
) -> Selection:
    """Draw `budget` examples at random from cells of k-means (by cosine), from each its share.

    Equal shares give rare kinds of examples as many as common ones; proportional shares keep the
    data's frequencies.
    """
    generator = derive_generator(seed, "stratified")
    num_cells = num_cells or min(_MOST_CELLS, -(-budget // _CHOSEN_PER_CELL))
    cells_N = spherical_kmeans(features.features_ND, num_cells, generator=generator).cpu()
    share_out = class_quotas if shares == "equal" else proportional_quotas
    quotas_G = share_out(cells_N.bincount().tolist(), budget)
    return unweighted(draw_from_groups(cells_N, quotas_G, generator=generator))


# The paper's beta, by the fraction that is kept.
_FRACTIONS, _BETAS = (0.1, 0.2, 0.5), (0.3, 0.2, 0.0)


@built_in(
    summary="random, equal shares of a score's strata but the hardest",
    paper='Zheng et al. 2023, "Coverage-centric Coreset Selection" (arXiv:2210.15809)',
    cost=Cost(Growth.LINEAR, "N (C + log N)"),
    needs=lambda options: Dynamics if options["score"] == "aum" else LastLayer,
    presets={
        "paper": Preset(
            "by AUM, without the hardest 30% for a tenth of the data, 20% for a fifth, none from "
            "half of it on (straight lines between are ours); classes as they come; "
            "needs learners",
            lambda fraction: {
                "score": "aum",
                "beta": f"{np.interp(fraction, _FRACTIONS, _BETAS):.4g}",
                "num_strata": "50",
            },
            balanced=False,
        )
    },
    revision=1,
    is_random=True,
)
def ccs(
    view: LastLayer | Dynamics,
    budget: int,
    *,
    score: Annotated[Literal["el2n", "aum"], "what difficulty is measured by"] = "el2n",
    beta: Annotated[float, Field(ge=0, lt=1), "share of the examples dropped as the hardest"] = 0.1,
    num_strata: Annotated[int, Field(ge=1), "intervals that the score's range is cut into"] = 50,
    seed: int,
) -> Selection:
    """Draw `budget` examples from equal shares of the score's strata.

    Fewer than beta N are dropped if the budget is above (1 - beta) N: it then takes the easiest.
    """
    # A large margin is easy.
    hardness_N = -mean_margins(view).float() if isinstance(view, Dynamics) else error_norms(view)
    num_dropped = min(round(beta * len(view)), len(view) - budget)
    # Stable: ties go to the first examples.
    kept_R = hardness_N.argsort(stable=True)[: len(view) - num_dropped]
    strata_R = strata_of(hardness_N[kept_R], num_strata)
    quotas_S = class_quotas(strata_R.bincount(minlength=num_strata).tolist(), budget)
    drawn_K = draw_from_groups(strata_R, quotas_S, generator=derive_generator(seed, "ccs"))
    return unweighted(kept_R[drawn_K])


def strata_of(scores_R: Tensor, num_strata: int) -> Tensor:
    """Each score's interval of equal width; R, int64. Equal scores are one stratum."""
    lowest, highest = scores_R.double().aminmax()
    if lowest == highest:
        return torch.zeros(len(scores_R), dtype=torch.int64, device=scores_R.device)
    shares_R = (scores_R.double() - lowest) / (highest - lowest)
    return (shares_R * num_strata).long().clamp(max=num_strata - 1)
