"""States of runs and learners, and failures of learners, equal in all processes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunState(StrEnum):
    """State of a run; MERGING goes back to TRAINING where the disk lost a learner."""

    PENDING = "pending"
    INITIALIZING = "initializing"
    SHARDING = "sharding"
    TRAINING = "training"
    MERGING = "merging"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # Shown while the coordinator has different data; the record keeps the real state.
    HELD = "held"
    # Shown in place of a record that the coordinator cannot read.
    UNREADABLE = "unreadable"
    # A trainer's value for a newer coordinator's state.
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """Whether nothing is done for the run any more."""
        return self in (
            RunState.READY,
            RunState.FAILED,
            RunState.CANCELLED,
            RunState.UNREADABLE,
        )


class LearnerState(StrEnum):
    """State of a learner; QUEUED again when an attempt failed or its result is lost."""

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"
    # As in `RunState`.
    UNKNOWN = "unknown"

    @property
    def open(self) -> bool:
        """Whether a result may still arrive."""
        return self in (LearnerState.QUEUED, LearnerState.LEASED)


class LearnerPhase(StrEnum):
    """A worker's phase with a learner."""

    FETCHING = "fetching"
    TRAINING = "training"
    SUBMITTING = "submitting"
    UNKNOWN = "unknown"


class DivergedQuantity(StrEnum):
    """A learner's values that are no longer finite."""

    LOSS = "loss"
    WEIGHTS = "weights"
    GRADIENT = "gradient"


@dataclass(frozen=True)
class Divergence:
    """The step of `num_steps` after which a learner's values were no longer finite."""

    quantity: DivergedQuantity
    step: int
    num_steps: int

    def __str__(self) -> str:
        return f"{self.quantity} not finite after step {self.step} of {self.num_steps}"
