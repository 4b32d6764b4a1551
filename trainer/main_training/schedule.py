"""Schedule of main training: when accuracies are taken and checkpoints written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# In floating point 1/49 of 49 steps is a little less than one.
_ROUNDING = 1e-9


def evenly(times: int) -> tuple[float, ...]:
    """The marks between so many equal parts of all steps: 0.25, 0.5 and 0.75 for 4."""
    return tuple(part / times for part in range(1, times))


@dataclass(frozen=True)
class Schedule:
    """When main training does something besides training.

    Accuracy is taken between epochs: after the last one, and for each of some shares of all
    steps after the last epoch that ends by then.

    test_at: shares, in (0, 1), at which the test set is looked at.
    subset_at: shares at which the subset is, without augmentation.
    checkpoint_seconds: time between checkpoints; 0 writes one after every epoch.
    """

    test_at: Sequence[float] = evenly(10)
    subset_at: Sequence[float] = evenly(10)
    checkpoint_seconds: float = 60.0


def due(shares: Sequence[float], step: int, next_step: int, num_steps: int) -> bool:
    """Whether an accuracy is to be taken after an epoch.

    Args:
        shares: of all steps, in (0, 1).
        step: steps so far.
        next_step: what they will be after the next epoch.
        num_steps: how many there are in all.
    """
    marks = (math.floor(share * num_steps + _ROUNDING) for share in shares)
    return step == num_steps or any(step <= mark < next_step for mark in marks)
