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
    steps after the last epoch that ends by then. A comparison of data sets of different
    sizes wants it at the same steps for all, so the test set can be looked at within epochs.

    test_at: shares, in (0, 1), at which the test set is looked at.
    subset_at: shares at which the subset is, without augmentation; None: never, not even
        after the last step.
    within_epochs: whether the test set is looked at on the very steps of `test_at`, in the
        midst of an epoch, too.
    checkpoint_seconds: time between checkpoints; 0 writes one after every epoch.
    """

    test_at: Sequence[float] = evenly(10)
    subset_at: Sequence[float] | None = evenly(10)
    checkpoint_seconds: float = 60.0
    within_epochs: bool = False

    def test_steps(self, num_steps: int) -> frozenset[int]:
        """The steps of `test_at`, of so many in all; the last one is never among them."""
        return frozenset(mark(share, num_steps) for share in self.test_at) - {num_steps}


def mark(share: float, num_steps: int) -> int:
    """The last step by which no more than a share of all steps has been taken."""
    return math.floor(share * num_steps + _ROUNDING)


def due(shares: Sequence[float], step: int, next_step: int, num_steps: int) -> bool:
    """Whether an accuracy is to be taken after an epoch.

    Args:
        shares: of all steps, in (0, 1).
        step: steps so far.
        next_step: what they will be after the next epoch.
        num_steps: how many there are in all.
    """
    marks = (mark(share, num_steps) for share in shares)
    return step == num_steps or any(step <= place < next_step for place in marks)
