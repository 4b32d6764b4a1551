"""Allowances: which learners' and ranges' files a peer may send, by its workers' leases."""

from __future__ import annotations

from collections import OrderedDict

from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.learner_files import LearnerFiles
from lipt.coordinator.dispatch.scans import MAX_RANGE_FILES, is_range
from lipt.coordinator.storage.accounts import Allowance

# As many as the registry remembers.
_MAX_WORKERS = 10_000


class Allowances:
    """What may be sent under the leases of one coordinator; belongs to the event loop."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        # By worker, the peer that it called as last.
        self._peers: OrderedDict[str, str] = OrderedDict()

    def note(self, worker_id: str, peer: str) -> None:
        """A worker has called as this peer; a new connection may be another one."""
        self._peers[worker_id] = peer
        self._peers.move_to_end(worker_id)
        if len(self._peers) > _MAX_WORKERS:
            self._peers.popitem(last=False)

    def of(self, peer: str) -> tuple[Allowance, ...]:
        """What a peer may send for learners: of each worker behind it, the one that it has."""
        workers = [worker_id for worker_id, known in self._peers.items() if known == peer]
        allowances = (self._of_worker(worker_id) for worker_id in workers)
        return tuple(allowance for allowance in allowances if allowance is not None)

    def is_live(self, lease: str) -> bool:
        """Whether a lease still holds."""
        text, _, epoch = lease.rpartition(" ")
        key = AssignmentKey.parse(text)
        held = self._dispatcher.scans if is_range(key) else self._dispatcher.leases
        return held.has(key, int(epoch))

    def _of_worker(self, worker_id: str) -> Allowance | None:
        grant = self._dispatcher.scans.held_by(worker_id)
        if grant is not None:
            return Allowance(
                f"{grant.key} {grant.lease.epoch}",
                max_files=MAX_RANGE_FILES,
                max_file_bytes=grant.scan.max_file_bytes,
            )
        held = self._dispatcher.held_by(worker_id)
        if held is None or held[0].initial_weights is None:
            return None
        run, learner = held
        lease = f"{AssignmentKey(run.run_id, learner.index)} {learner.epoch}"
        most = LearnerFiles.of(run)
        return Allowance(lease, max_files=most.max_files, max_file_bytes=most.max_file_bytes)
