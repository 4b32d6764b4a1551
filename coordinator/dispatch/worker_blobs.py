"""Blobs of workers: which files a worker may read and write."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import ForeignBlobError
from lipt.coordinator.access.worker_identity import Evidence
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.state.records import LearnerRecord, RunRecord

# Learner files: how many a worker may send for a learner under one lease, and how large.

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


# Worker blobs: which blobs a worker may read and send, which follows from the lease it has.
#
# It reads what its assignment names, and sends as many files as that learner, or range, can have.
# All else in the store, other learners' shards and results, soups, subsets, is no worker's.

Held = tuple[RunRecord, LearnerRecord]


class WorkerBlobs:
    """Decides on each blob that a worker names; callers that are no workers pass."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        # By lease, what its worker has named to be sent.
        self._named: dict[tuple[AssignmentKey, int], set[BlobName]] = {}

    def require_readable(self, name: BlobName, shown: Evidence) -> None:
        """Refuse a worker what its assignment does not name.

        Raises:
            ForeignBlobError: it is another's, or nobody's.
            ForeignWorkerError: the call is not of the worker whose secret it shows.
        """
        workers = self._dispatcher.workers.behind(shown)
        if workers is None or self._dispatcher.scans.may_read(name, workers):
            return
        if reason := why_not_read(name, self._held(workers)):
            raise ForeignBlobError(reason)

    def require_sendable(self, name: BlobName, shown: Evidence) -> None:
        """Refuse a worker what cannot be of its learner.

        Raises:
            ForeignBlobError: it has no lease, or sends more than a learner has.
            ForeignWorkerError: the call is not of the worker whose secret it shows.
        """
        workers = self._dispatcher.workers.behind(shown)
        if workers is None or self._dispatcher.scans.may_send(name, workers):
            return
        held = self._held(workers)
        reason = why_not_send(name, held, [self._names(run, learner) for run, learner in held])
        if reason:
            raise ForeignBlobError(reason)
        # Of several older workers behind one key it is not known whose it is: it counts for all.
        for run, learner in held:
            self._names(run, learner).add(name)

    def _held(self, workers: Collection[str]) -> list[Held]:
        return [held for worker in workers if (held := self._dispatcher.held_by(worker))]

    def _names(self, run: RunRecord, learner: LearnerRecord) -> set[BlobName]:
        lease = (AssignmentKey(run.run_id, learner.index), learner.epoch)
        if lease not in self._named:
            leases = self._dispatcher.leases
            self._named = {old: names for old, names in self._named.items() if leases.has(*old)}
            self._named[lease] = set()
        return self._named[lease]


def why_not_read(name: BlobName, held: Sequence[Held]) -> str:
    """Why a worker may not read a blob; empty where it may.

    Args:
        name: what it asks for.
        held: the learners that it has the lease of, with their runs.
    """
    if any(name in (run.initial_weights, learner.shard) for run, learner in held):
        return ""
    if not held:
        return (
            f"a worker reads blobs of its assignment, and this one has none, so not {name}. Its "
            "lease is over, or never was: ask for the next assignment."
        )
    return (
        f"blob {name} is not of this worker's assignment {_shown(held)}. A worker reads the "
        "initial weights and the shard that its assignment names; what else there is, trainers "
        "read."
    )


def why_not_send(
    name: BlobName, held: Sequence[Held], named: Sequence[Collection[BlobName]]
) -> str:
    """Why a worker may not send a blob, nor ask how much of it is kept; empty where it may.

    Args:
        name: what it wants to send.
        held: the learners that it has the lease of, with their runs.
        named: what it has named under each of these leases.
    """
    if not held:
        return (
            f"a worker sends blobs while it has a learner, and this one has none, so not {name}. "
            "Its lease is over, or never was: ask for the next assignment."
        )
    reasons = [
        _why_not_of(name, run, learner, names)
        for (run, learner), names in zip(held, named, strict=True)
    ]
    return "" if not all(reasons) else reasons[0]


def _why_not_of(
    name: BlobName, run: RunRecord, learner: LearnerRecord, names: Collection[BlobName]
) -> str:
    which, most = _shown([(run, learner)]), LearnerFiles.of(run)
    if name.size_bytes > most.max_file_bytes:
        initial_bytes = run.initial_weights.size_bytes if run.initial_weights else 0
        return (
            f"blob {name} is larger than the {most.max_file_bytes} bytes that a file of learner "
            f"{which} may have, whose initial weights have {initial_bytes}. Send this learner's "
            "files."
        )
    if name not in names and len(names) >= most.max_files:
        return (
            f"blob {name} is one more than the {most.max_files} that may be sent for learner "
            f"{which}. Send its result, and its snapshots where the run has some."
        )
    return ""


def _shown(held: Sequence[Held]) -> str:
    return ", ".join(f"{run.name}/{learner.index}" for run, learner in held)
