"""Blobs of workers: a worker reads the files of its assignment, and sends those of its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import ForeignBlobError
from lipt.coordinator.access.caller import Evidence
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.state.records import RunRecord

# A worker may compute its learner or range once more, and get other bits.
_TIMES_COMPUTED = 2
# A learner has theta*'s tensors: some of the values, a bit for each, and a header.
_TIMES_INITIAL_BYTES, _MORE_BYTES = 2, 2**20

LeaseId: TypeAlias = tuple[AssignmentKey, int]


@dataclass(frozen=True)
class Allowance:
    """The files that may be sent under a lease: their number, and the most bytes of each."""

    lease: LeaseId
    max_files: int
    max_file_bytes: int

    @classmethod
    def of_learner(cls, lease: LeaseId, run: RunRecord) -> Allowance:
        """Of a learner of the run."""
        initial_bytes = run.initial_weights.size_bytes if run.initial_weights else 0
        return cls(
            lease,
            max_files=_TIMES_COMPUTED * (run.config.learners.num_snapshots + 1),
            max_file_bytes=_TIMES_INITIAL_BYTES * initial_bytes + _MORE_BYTES,
        )


class WorkerBlobs:
    """Decides what the worker behind a call may read and send; other callers pass."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def require_readable(self, name: BlobName, shown: Evidence) -> None:
        """Refuse a worker a blob that its assignment does not name, with a ForeignBlobError."""
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
        """The allowance of a worker that sends a blob; None for a caller that is no worker.

        A worker without a lease is refused with a ForeignBlobError.
        """
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
