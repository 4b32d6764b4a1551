"""Finite values: examples whose values are not finite are refused, with their ids.

Shapes: B examples of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lipt.common.errors import SignalsError

_MAX_NAMED = 5


def named(ids: Sequence[int]) -> str:
    """The first ids, for a message."""
    return ", ".join(map(str, ids[:_MAX_NAMED])) + (", ..." if len(ids) > _MAX_NAMED else "")


def require_finite_rows(finite_B: Tensor, ids_B: Tensor, what: str) -> None:
    """Refuse examples whose values are not finite.

    Args:
        finite_B: whether each example's are, on any device.
        ids_B: the examples' ids.
        what: what the values are, for the message.

    Raises:
        SignalsError: names the first ids.
    """
    bad = ids_B[~finite_B.cpu()].tolist()
    if bad:
        raise SignalsError(
            f"the model's {what} are not finite for {len(bad)} of {len(ids_B)} examples, with "
            f"ids {named(bad)}. Its weights have diverged: where they are a run's own, lower "
            "learners.learning_rate and start another run; where you gave them, give weights "
            "from before they diverged."
        )
