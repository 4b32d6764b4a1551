"""Blobs of workers: a worker reads its assignment's files and uploads its result's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import ForeignBlobError
from lipt.coordinator.access.caller import Evidence
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.state.records import RunRecord

# A worker may compute its learner or range again, with other bits.
_TIMES_COMPUTED = 2
# A learner has theta*'s tensors: some of the values, a mask bit for each, and a header.
_TIMES_INITIAL_BYTES, _MORE_BYTES = 2, 2**20

LeaseId: TypeAlias = tuple[AssignmentKey, int]


@dataclass(frozen=True)
class Allowance:
    """The maximum number and size of files that may be uploaded under a lease."""

    lease: LeaseId
    max_files: int
    max_file_bytes: int

    @classmethod
    def of_learner(cls, lease: LeaseId, run: RunRecord) -> Allowance:
        """The allowance for a learner of the run."""
        initial_bytes = run.initial_weights.size_bytes if run.initial_weights else 0
        return cls(
            lease,
            max_files=_TIMES_COMPUTED * (run.config.learners.num_snapshots + 1),
            max_file_bytes=_TIMES_INITIAL_BYTES * initial_bytes + _MORE_BYTES,
        )


class WorkerBlobs:
    """Decides which blobs a worker may read and upload; other callers are not limited."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def require_readable(self, name: BlobName, shown: Evidence) -> None:
        """Refuse a blob outside the worker's assignment, with a ForeignBlobError."""
        worker_id = self._dispatcher.workers.behind(shown)
        if worker_id is None:
            return
        grant = self._dispatcher.scans.held_by(worker_id)
        held = self._dispatcher.held_by(worker_id)
        if grant is None and held is None:
            raise _without_lease("reads", name)
        readable: list[BlobName | None] = []
        if grant is not None:
            readable.append(grant.scan.weights)
        if held is not None:
            run, learner = held
            readable += [run.initial_weights, learner.shard]
        if name not in readable:
            raise ForeignBlobError(
                f"blob {name} is not of this worker's assignment. A worker reads the initial "
                "weights and the shard of its assignment."
            )

    def allowance(self, name: BlobName, shown: Evidence) -> Allowance | None:
        """The worker's allowance (ForeignBlobError without a lease); None for other callers."""
        worker_id = self._dispatcher.workers.behind(shown)
        if worker_id is None:
            return None
        if held := self._dispatcher.held_by(worker_id):
            run, learner = held
            key = AssignmentKey(run.run_id, learner.index)
            return Allowance.of_learner((key, learner.epoch), run)
        if grant := self._dispatcher.scans.held_by(worker_id):
            return Allowance((grant.key, grant.epoch), _TIMES_COMPUTED, grant.scan.max_file_bytes)
        raise _without_lease("sends", name)


def _without_lease(verb: str, name: BlobName) -> ForeignBlobError:
    return ForeignBlobError(
        f"a worker {verb} blobs of its assignment, and this one has none, so not {name}. Its "
        "lease is over, or never was: ask for the next assignment."
    )
