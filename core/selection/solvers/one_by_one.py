"""Choice one by one: each pick needs one row of a kernel, which is computed ahead.

A product of one row with all examples waits for memory; one of 64 rows takes little
longer. The examples that promise most now are mostly the next ones to be picked, so
their rows are computed together and kept until a pick is not among them. What is picked
does not depend on it.

Shapes: N examples, K budget, B rows computed together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipt.common.signals.blocks import BLOCK_BYTES
from lipt.core.selection.selection import Selection, unweighted

ROWS_AHEAD = 64


def choose_one_by_one(
    gains_N: Tensor,
    budget: int,
    *,
    rows_of: Callable[[Tensor], Tensor],
    update: Callable[[Tensor, Tensor, int], None],
    rows_ahead: int = ROWS_AHEAD,
) -> Selection:
    """Pick the largest gain `budget` times, with an update after each pick.

    Gains are compared in float32, so that those of equal examples tie whatever their
    last bits; ties go to the lowest id.

    Args:
        gains_N: float64, finite; overwritten. What is picked gets -inf.
        budget: K, in 1..N.
        rows_of: from B positions, their B x N rows of the kernel.
        update: told the gains to change in place, the row of the pick and its position.
            -inf has to stay -inf.
        rows_ahead: B, less where B rows would be large.

    Returns:
        K distinct positions, in the order of choice, each with weight 1.
    """
    rows_ahead = max(1, min(rows_ahead, BLOCK_BYTES // (8 * len(gains_N))))
    slots: dict[int, int] = {}
    rows_BN = gains_N.new_empty(0, len(gains_N))
    picks = []
    for num_left in range(budget, 0, -1):
        position = int(gains_N.float().argmax())
        picks.append(position)
        if position not in slots and num_left > 1:
            positions_B = _most_promising(gains_N, position, min(rows_ahead, num_left))
            rows_BN = rows_of(positions_B)
            slots = {found: slot for slot, found in enumerate(positions_B.tolist())}
        if num_left > 1:
            update(gains_N, rows_BN[slots[position]], position)
        gains_N[position] = -torch.inf
    return unweighted(torch.tensor(picks, device=gains_N.device))


def _most_promising(gains_N: Tensor, position: int, count: int) -> Tensor:
    """`position` and the others with the largest gains, `count` together."""
    best_B = gains_N.topk(count).indices
    others_B = best_B[best_B != position][: count - 1]
    return torch.cat([others_B.new_tensor([position]), others_B])
