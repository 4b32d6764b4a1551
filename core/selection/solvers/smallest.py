"""Smallest distances, with ties that do not depend on rounding.

Shapes: R rows, N columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def nearest(distances_RN: Tensor, count: int) -> Tensor:
    """The columns of the smallest distances of each row, ties to the lowest; R x count.

    The bits of a float64 that is not negative, read as an integer, have the same order.
    Its last bits, rounded away, make room for the column: no two are equal, and copies of
    an example are at the same distance whatever rounding did.

    Args:
        distances_RN: float64, not negative; overwritten.
        count: how many, N at most.
    """
    num_columns = distances_RN.shape[1]
    id_bits = max(24, num_columns.bit_length())
    keys_RN = distances_RN.view(torch.int64)
    keys_RN.add_(1 << (id_bits - 1)).bitwise_and_(-(1 << id_bits))
    keys_RN.bitwise_or_(torch.arange(num_columns, device=keys_RN.device))
    return keys_RN.topk(count, dim=-1, largest=False).indices
