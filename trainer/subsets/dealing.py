"""Dealing: an epoch's order among ranks, so that no two have an example in common.

All ranks know the whole order, and each takes every `num_ranks`-th example of it.

Shapes: N examples of the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from torch import Tensor, cat

from lipt.common.errors import ConfigError

# What happens to the examples that do not divide evenly among the ranks.
Uneven = Literal["keep", "drop", "repeat"]

# So many of an order are Python's ints at a time.
_BLOCK = 16_384


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


def num_dealt(num_examples: int, rank: int, num_ranks: int, uneven: Uneven) -> int:
    """How long a rank's part is of an order of so many: that of `deal`, which needs no order."""
    fewest, left_over = divmod(num_examples, num_ranks)
    one_more = bool(left_over) if uneven == "repeat" else uneven == "keep" and rank < left_over
    return fewest + one_more


def in_blocks(order_N: Tensor) -> Iterator[Tensor]:
    """An order in pieces that are small beside it, to make Python's ints of."""
    for start in range(0, len(order_N), _BLOCK):
        yield order_N[start : start + _BLOCK]


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
