"""Log-determinant: examples whose directions span the largest volume.

The value of a set S is log det(s_S + ridge I), with similarities s. An example gains
the log of its squared distance from the span of those before it, so near copies gain
log ridge, less than anything else. The greedy choice keeps those distances up to date
by one column of a Cholesky factor per pick (Chen et al. 2018): no determinant, no
inverse. Its columns take K x N float64; applied per class that is little.

Shapes: N examples, B rows computed together, K budget, T columns so far.
Source: Chen, Zhang and Zhou 2018 (arXiv:1709.05135).
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

# A batch is used up after some ten picks: their columns change what promises most.
_ROWS_AHEAD = 32


def log_det(
    signals: Signals,
    budget: int,
    *,
    space: Space = "gradients",
    ridge: Annotated[float, Field(ge=1e-6), "what an example counts beyond its direction"] = 1e-3,
) -> Selection:
    """Keep `budget` examples, each with the largest gain in log det(s_S + ridge I).

    Similarity is (1 + cosine) / 2; the ridge keeps copies from -infinity. Ties keep data set
    order: what is left when all directions are taken, too.
    """
    similarity = ScaledCosine(Rows(in_space(signals, space)))
    # exp(gain): the squared distance from the span, plus the ridge.
    distances_N = similarity.to_themselves() + ridge
    columns_KN = distances_N.new_empty(budget, len(distances_N))
    num_columns = 0
    num_taken_out = 0

    def residual_rows(positions_B: Tensor) -> Tensor:
        """Computed ahead with the columns so far taken out, in one matrix product."""
        nonlocal num_taken_out
        num_taken_out = num_columns
        columns_TN = columns_KN[:num_columns]
        return similarity.rows(positions_B).addmm_(
            columns_TN[:, positions_B].T, columns_TN, alpha=-1
        )

    def project(distances_N: Tensor, row_N: Tensor, position: int) -> None:
        """Take out what remains, the few columns since."""
        nonlocal num_columns
        columns_TN = columns_KN[num_taken_out:num_columns]
        column_N = row_N - columns_TN[:, position] @ columns_TN
        # Below the ridge is rounding.
        column_N /= distances_N[position].clamp(min=ridge).sqrt()
        columns_KN[num_columns] = column_N
        num_columns += 1
        distances_N.sub_(column_N.square_())

    return choose_one_by_one(
        distances_N, budget, rows_of=residual_rows, update=project, rows_ahead=_ROWS_AHEAD
    )


STRATEGY = Strategy(
    function=log_det,
    summary="directions that span the largest volume, by gradient or feature",
    paper=(
        'Chen et al. 2018, "Fast Greedy MAP Inference for Determinantal Point Process to '
        'Improve Recommendation Diversity" (arXiv:1709.05135)'
    ),
    cost="N k (C + d + k)",
    needs=needs_of_space,
)
