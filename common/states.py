"""States of runs and learners, the same words for the coordinator and everybody who watches."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """Where a run is; MERGING goes back to TRAINING where the disk lost a learner."""

    PENDING = "pending"
    INITIALIZING = "initializing"
    SHARDING = "sharding"
    TRAINING = "training"
    MERGING = "merging"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # What peers see of a run, in whatever state before its end, whose data its coordinator does
    # not have now; its record keeps the state from which it goes on.
    HELD = "held"
    # What a trainer calls a newer coordinator's state; no coordinator's run is in it.
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self in (RunState.READY, RunState.FAILED, RunState.CANCELLED)


class LearnerState(StrEnum):
    """Where a learner is; QUEUED again whenever an attempt came to nothing or its result is lost.

    DONE, FAILED and DROPPED are its ends otherwise.
    """

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"
    # As in `RunState`.
    UNKNOWN = "unknown"

    @property
    def open(self) -> bool:
        """Whether a result may still come."""
        return self in (LearnerState.QUEUED, LearnerState.LEASED)


class LearnerPhase(StrEnum):
    """What a worker does with its learner."""

    FETCHING = "fetching"
    TRAINING = "training"
    SUBMITTING = "submitting"
    # Nothing was said of it, or nothing that this version has a word for.
    UNKNOWN = "unknown"
