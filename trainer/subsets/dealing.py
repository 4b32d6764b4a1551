"""Dealing: an epoch's order among ranks, so that no two have an example in common.

All ranks know the whole order, and each takes every `num_ranks`-th example of it.

Shapes: N examples of the order.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, cat

from lipt.common.errors import ConfigError

# What happens to the examples that do not divide evenly among the ranks.
Uneven = Literal["keep", "drop", "repeat"]


def deal(order_N: Tensor, rank: int, num_ranks: int, uneven: Uneven) -> Tensor:
    """A rank's part of an order.

    Args:
        order_N: the same on every rank.
        rank: whose part it is, from 0.
        num_ranks: how many there are.
        uneven: where N does not divide by `num_ranks`: "keep" gives the first ranks one
            example more, "drop" leaves the last ones of the order out, and "repeat" gives
            the first ones of the order to the other ranks again.
    """
    left_over = len(order_N) % num_ranks
    if left_over and uneven == "drop":
        order_N = order_N[: len(order_N) - left_over]
    elif left_over and uneven == "repeat":
        missing = num_ranks - left_over
        repeats = -(-missing // len(order_N))
        order_N = cat([order_N, order_N.repeat(repeats)[:missing]])
    return order_N[rank::num_ranks]


def require_rank(rank: int, num_ranks: int) -> None:
    """Refuse a rank that is not there.

    Raises:
        ConfigError: it is outside 0..num_ranks - 1.
    """
    if not 0 <= rank < num_ranks:
        raise ConfigError(
            f"rank {rank} is not one of {num_ranks}. Ranks count from 0 to "
            f"num_ranks - 1, here {num_ranks - 1}."
        )
