"""When main training does something besides training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """When main training does something besides training.

    evaluations: how often the test set and the subset are looked at, evenly spread over
        the steps, the end included.
    checkpoint_seconds: time between checkpoints; 0 writes one after every epoch.
    """

    evaluations: int = 10
    checkpoint_seconds: float = 60.0

    def evaluation_due(self, step_before: int, step: int, num_steps: int) -> bool:
        """Whether an evaluation fell due between two steps of `num_steps`."""
        passed = step * self.evaluations // num_steps
        return step == num_steps or passed != step_before * self.evaluations // num_steps
