"""Graph cut: examples that are like all the others, but not like each other.

With S the chosen of V examples and similarities s, the value of S is
    lambda sum_{i in V, j in S} s_ij - sum_{i, j in S} s_ij,
representative by the first sum, diverse by the second. For s >= 0 it is submodular, and
for lambda >= 2 no example makes it smaller: j adds lambda s_ij for every i in V, and takes
2 s_ij for those in S and s_jj for itself. Then greedy choice reaches at least 63% of the
best value. A smaller lambda weighs diversity more, without that promise.

Both sums follow without an N x N matrix: the first is one product with the sum of all
directions, the second needs one row per pick.

Shapes: N examples, B rows computed together, K budget.
Source: Iyer et al. 2021 (arXiv:2006.15412), whose lambda is 1 / ours.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from lipt.core.selection.gradients.vectors import Rows, ScaledCosine, in_space
from lipt.core.selection.selection import Selection
from lipt.core.selection.solvers.greedy import choose_one_by_one
from lipt.core.selection.strategies.common_options import Space, needs_of_space
from lipt.core.selection.strategy import Strategy
from lipt.core.signals.signals import Signals


def graph_cut(
    signals: Signals,
    budget: int,
    *,
    space: Space = "gradients",
    coverage: Annotated[float, Field(ge=0), "weight of being like all; monotone from 2"] = 2.0,
) -> Selection:
    """Keep `budget` examples, each with the largest gain in the graph cut's value.

    Similarity is (1 + cosine) / 2; coverage is lambda. Ties keep data set order.
    """
    similarity = ScaledCosine(Rows(in_space(signals, space)))

    def repel(gains_N: Tensor, row_N: Tensor, _: int) -> None:
        # s_ij and s_ji: both ends of the pair are now in the set.
        gains_N.sub_(row_N, alpha=2)

    return choose_one_by_one(
        similarity.column_sums().mul_(coverage).sub_(similarity.to_themselves()),
        budget,
        rows_of=similarity.rows,
        update=repel,
    )


STRATEGY = Strategy(
    function=graph_cut,
    summary="like all examples but not like each other, by gradient or feature",
    paper=(
        'Iyer et al. 2021, "Submodular Combinatorial Information Measures with '
        'Applications in Machine Learning" (arXiv:2006.15412)'
    ),
    cost="N k (C + d)",
    needs=needs_of_space,
)
