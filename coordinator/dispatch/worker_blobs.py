"""Blobs of workers: which files a worker may read and send, by its lease.

It reads the initial weights and the shard of its assignment, and sends as many files as its learner
or range can have. All other blobs are no worker's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import ForeignBlobError
from lipt.coordinator.access.worker_identity import Evidence
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.state.records import LearnerRecord, RunRecord

# A worker may train its learner once more, and get other bits.
_TIMES_TRAINED = 2
# A learner has theta*'s tensors: some of the values, a bit for each, and a header.
_TIMES_INITIAL_BYTES, _MORE_BYTES = 2, 2**20

Held = tuple[RunRecord, LearnerRecord]


@dataclass(frozen=True)
class LearnerFiles:
    """The number of files that may be sent for a learner, and their size at most."""

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


class WorkerBlobs:
    """Decides on each blob that a worker names; callers that are no workers pass."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        # Blobs that a worker has named to be sent, by lease.
        self._named: dict[tuple[AssignmentKey, int], set[BlobName]] = {}

    def require_readable(self, name: BlobName, shown: Evidence) -> None:
        """Refuse a worker what its assignment does not name.

        Raises:
            ForeignBlobError: the blob is not of its assignment.
            ForeignWorkerError: the call is not of the worker whose secret it shows.
        """
        workers = self._dispatcher.workers.behind(shown)
        if workers is None or self._dispatcher.scans.may_read(name, workers):
            return
        held = self._held(workers)
        if not held:
            raise ForeignBlobError(
                f"a worker reads blobs of its assignment, and this one has none, so not {name}. "
                "Its lease is over, or never was: ask for the next assignment."
            )
        if not any(name in (run.initial_weights, learner.shard) for run, learner in held):
            raise ForeignBlobError(
                f"blob {name} is not of this worker's assignment {_shown(*held)}. A worker reads "
                "the initial weights and the shard of its assignment."
            )

    def require_sendable(self, name: BlobName, shown: Evidence) -> None:
        """Refuse a worker what cannot be of its learner or range.

        Raises:
            ForeignBlobError: it has no lease, or sends more than a learner has.
            ForeignWorkerError: the call is not of the worker whose secret it shows.
        """
        workers = self._dispatcher.workers.behind(shown)
        if workers is None or self._dispatcher.scans.may_send(name, workers):
            return
        held = self._held(workers)
        if not held:
            raise ForeignBlobError(
                f"a worker sends blobs while it has a learner, and this one has none, so not "
                f"{name}. Its lease is over, or never was: ask for the next assignment."
            )
        reasons = [_why_not_send(name, one, self._names(*one)) for one in held]
        if all(reasons):
            raise ForeignBlobError(reasons[0])
        # Of several older workers behind one key it is not known whose it is: it counts for all.
        for one in held:
            self._names(*one).add(name)

    def _held(self, workers: Collection[str]) -> list[Held]:
        return [held for worker in workers if (held := self._dispatcher.held_by(worker))]

    def _names(self, run: RunRecord, learner: LearnerRecord) -> set[BlobName]:
        lease = (AssignmentKey(run.run_id, learner.index), learner.epoch)
        if lease not in self._named:
            leases = self._dispatcher.leases
            self._named = {old: names for old, names in self._named.items() if leases.has(*old)}
            self._named[lease] = set()
        return self._named[lease]


def _why_not_send(name: BlobName, held: Held, names: Collection[BlobName]) -> str:
    most = LearnerFiles.of(held[0])
    if name.size_bytes > most.max_file_bytes:
        return (
            f"blob {name} is larger than the {most.max_file_bytes} bytes that a file of learner "
            f"{_shown(held)} may have. Send this learner's files."
        )
    if name not in names and len(names) >= most.max_files:
        return (
            f"blob {name} is one more than the {most.max_files} that may be sent for learner "
            f"{_shown(held)}. Send its result, and its snapshots where the run has some."
        )
    return ""


def _shown(*held: Held) -> str:
    return ", ".join(f"{run.name}/{learner.index}" for run, learner in held)
