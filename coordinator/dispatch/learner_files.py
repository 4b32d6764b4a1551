"""Learner files: how many a worker may send for a learner under one lease, and how large."""

from __future__ import annotations

from dataclasses import dataclass

from lipt.coordinator.state.records import RunRecord

# A worker that comes back to its learner trains it once more, and may get other bits.
_TIMES_TRAINED = 2
# A learner has theta*'s tensors: some of the values, a bit for each, and a header.
_TIMES_INITIAL_BYTES, _MORE_BYTES = 2, 2**20


@dataclass(frozen=True)
class LearnerFiles:
    """The most that may be sent: so many files, of so many bytes each."""

    max_files: int
    max_file_bytes: int

    @classmethod
    def of(cls, run: RunRecord) -> LearnerFiles:
        """Of any learner of the run."""
        initial_bytes = run.initial_weights.size_bytes if run.initial_weights else 0
        return cls(
            max_files=_TIMES_TRAINED * (run.config.learners.num_snapshots + 1),
            max_file_bytes=_TIMES_INITIAL_BYTES * initial_bytes + _MORE_BYTES,
        )
