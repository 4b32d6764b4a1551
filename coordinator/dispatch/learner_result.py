"""What a worker hands in, and what becomes of the learner that it is of."""

from __future__ import annotations

from dataclasses import dataclass

from lipt.common.blobs.name import BlobName
from lipt.coordinator.state.records import LearnerRecord, LearnerState


@dataclass(frozen=True)
class LearnerResult:
    """What a worker hands in."""

    blob: BlobName
    loss: float
    train_seconds: float
    bytes_received: int
    snapshots: tuple[BlobName, ...] = ()

    def handed_in(self, learner: LearnerRecord) -> LearnerRecord:
        """The learner, done with this result."""
        return learner.changed(
            state=LearnerState.DONE,
            result=self.blob,
            snapshots=self.snapshots,
            loss=self.loss,
            train_seconds=self.train_seconds,
            bytes_received=self.bytes_received,
            message="",
        )


def is_in(learner: LearnerRecord, result: BlobName, worker_id: str, epoch: int) -> bool:
    """Whether the learner is done with this very result of this lease."""
    return learner.state is LearnerState.DONE and (
        learner.worker_id,
        learner.epoch,
        learner.result,
    ) == (worker_id, epoch, result)
