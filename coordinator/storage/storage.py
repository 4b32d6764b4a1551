"""Storage of one coordinator: accounts, uploads and the collector of its state directory."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lipt.common.blobs.store import BlobStore
from lipt.common.observability.logs import Events
from lipt.common.observability.metrics import Readings
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.dispatch.scans import MAX_RANGE_FILES
from lipt.coordinator.dispatch.worker_blobs import LearnerFiles
from lipt.coordinator.instruments import STORAGE, UNFINISHED_UPLOADS
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.needs import named_by, named_digests
from lipt.coordinator.state.records import LearnerRecord, RunRecord
from lipt.coordinator.storage.accounts import (
    Accounts,
    Allowance,
    Uploads,
    free_bytes,
    resolve_quota,
)
from lipt.coordinator.storage.collector import Collector

logger = logging.getLogger(__name__)

# As many as the registry remembers.
_MAX_WORKERS = 10_000


class Allowances:
    """Files that peers may send under the leases of their workers; belongs to the event loop."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        # The last peer of each worker.
        self._peers: OrderedDict[str, str] = OrderedDict()

    def note(self, worker_id: str, peer: str) -> None:
        """Note the peer of a worker's call; a new connection may be another one."""
        self._peers[worker_id] = peer
        self._peers.move_to_end(worker_id)
        if len(self._peers) > _MAX_WORKERS:
            self._peers.popitem(last=False)

    def of(self, peer: str) -> tuple[Allowance, ...]:
        """The allowances of the leases of a peer's workers."""
        workers = [worker_id for worker_id, known in self._peers.items() if known == peer]
        allowances = (self._of_worker(worker_id) for worker_id in workers)
        return tuple(allowance for allowance in allowances if allowance is not None)

    def is_live(self, lease: str) -> bool:
        """Whether a lease still holds."""
        text, _, epoch = lease.rpartition(" ")
        return self._dispatcher.leases.has(AssignmentKey.parse(text), int(epoch))

    def _of_worker(self, worker_id: str) -> Allowance | None:
        grant = self._dispatcher.scans.held_by(worker_id)
        if grant is not None:
            return Allowance(
                f"{grant.key} {grant.epoch}",
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


@dataclass(frozen=True)
class Storage:
    """Accounts, allowances, uploads and collector of one coordinator."""

    accounts: Accounts
    allowances: Allowances
    uploads: Uploads
    collector: Collector

    def readings(self) -> Readings:
        """Stored bytes by kind, and the number of unfinished uploads."""
        latest = self.collector.latest
        return {
            STORAGE: {
                ("needed",): latest.needed_bytes,
                ("spare",): latest.spare_bytes,
                ("uploaded",): self.accounts.num_bytes(finished=True),
                ("reserved",): self.accounts.num_bytes(finished=False),
            },
            UNFINISHED_UPLOADS: {(): self.accounts.num_unfinished()},
        }


async def open_storage(
    directory: Path,
    blobs: BlobStore,
    store: RunStore,
    dispatcher: Dispatcher,
    settings: StorageSettings,
    events: Events,
    *,
    wall_clock: Callable[[], float],
    clock: Callable[[], float],
) -> Storage:
    """The storage of a state directory, with the uploads of an earlier process in the accounts.

    Raises:
        StateError: the directory cannot be read.
    """
    finished, unfinished = await asyncio.to_thread(_left_behind, directory, blobs)
    usable = free_bytes(directory) + sum(finished.values()) + sum(unfinished.values())
    quota = resolve_quota(settings, usable_bytes=usable)
    logger.info(
        "uploads may take %d bytes, %d of one peer; they take %d now",
        quota.max_bytes,
        quota.max_bytes_per_peer,
        sum(finished.values()),
    )
    allowances = Allowances(dispatcher)
    accounts = Accounts(quota, clock=clock, is_live=allowances.is_live)
    accounts.restore(finished, unfinished)

    def forget_named(run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        # Of thousands of learners the others were named before.
        changed = run.changed(learners=tuple(learners))
        accounts.forget(blob.sha256 for blob in named_by(changed))

    store.listen_to_learners(forget_named)
    collector = Collector(directory, blobs.expiry, accounts, settings, events, wall_clock)
    return Storage(accounts, allowances, Uploads(blobs, accounts, allowances.of), collector)


def _left_behind(directory: Path, blobs: BlobStore) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes of the blobs that no record names, and of the beginnings."""
    named = set(named_digests(directory))
    left = (blobs.expiry.blob(digest) for digest in blobs.expiry.digests() if digest not in named)
    finished = {blob.sha256: blob.size_bytes for blob in left if blob is not None}
    return finished, {part.sha256: part.size_bytes for part in blobs.expiry.parts()}
