"""Open scans: ranges of passes over the data, for workers that have it.

The first range that nobody has goes first; the job that needs them begins at the other end, and
computes what is missing. A worker whose machine is not of the scan's kind gets none, nor does one
that sent wrong values. Done ranges lie on the disk.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lipt.common.blobs.blob import BlobName
from lipt.common.config.tasks import ScoringTask
from lipt.common.errors import StaleLeaseError
from lipt.common.observability.metrics import Meters
from lipt.coordinator.compute.messages import ScanClosed, ScanNews
from lipt.coordinator.compute.scan import RangeDone, Scan, ScanOpened, WorkerDistrusted
from lipt.coordinator.dispatch.leases import AssignmentKey, LeaseTable
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.instruments import SCORED_EXAMPLES

# A range is one file; a worker that computes it again may get other bits.
MAX_RANGE_FILES = 2


@dataclass(frozen=True)
class RangeGrant:
    """A range that a worker has the lease of."""

    scan: Scan
    key: AssignmentKey
    worker_id: str
    epoch: int

    @property
    def task(self) -> ScoringTask:
        """The range's task."""
        return self.scan.task(self.key.learner)

    def __str__(self) -> str:
        return f"examples {self.task.start} to {self.task.stop - 1}"


@dataclass
class _Open:
    scan: Scan
    done: set[int]
    # A heap of the ranges that wait for a worker; some may be done by now.
    free: list[int]
    # The number of ranges that were missing when it was opened.
    num_wanted: int
    # Ranges that a worker failed on: the job computes them.
    failed: set[int] = field(default_factory=set)
    excluded: set[str] = field(default_factory=set)
    last_epoch: int = 0
    # Files that workers have announced, by epoch.
    named: dict[int, set[BlobName]] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        return any(index not in self.done for index in self.free)

    def take_free(self) -> int | None:
        while self.free:
            index = heapq.heappop(self.free)
            if index not in self.done:
                return index
        return None

    def set_free(self, index: int) -> None:
        if index not in self.done | self.failed and index not in self.free:
            heapq.heappush(self.free, index)


class Scans:
    """The scans that are open; for one event loop."""

    def __init__(self, leases: LeaseTable, meters: Meters | None = None) -> None:
        """Begin with none; scored examples are counted in `meters`."""
        self._leases = leases
        self._meters = meters or Meters()
        self._open: dict[str, _Open] = {}
        self._distrusted: set[str] = set()
        self._news = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._told_wanted = 0

    def note(self, news: ScanNews) -> None:
        """Take a message of a job about its scan."""
        opened = self._open.get(news.scan_id)
        match news:
            case ScanOpened(scan=scan, present=present):
                # A repeated job opens it once more, without having closed it.
                self._leases.end_all(scan.scan_id)
                free = [index for index in range(scan.num_ranges) if index not in present]
                self._open[scan.scan_id] = _Open(scan, set(present), free, len(free))
            case ScanClosed():
                self._open.pop(news.scan_id, None)
                self._leases.end_all(news.scan_id)
            case RangeDone() if opened is not None:
                self._finish(opened, news.index, "coordinator")
            case WorkerDistrusted() if opened is not None:
                self._distrusted.add(news.worker_id)
                opened.done -= news.ranges
                for index in news.ranges:
                    opened.set_free(index)
        self._wake()

    def take(self, worker: WorkerRecord) -> RangeGrant | None:
        """The range that the worker has, or else its next one."""
        held = self.held_by(worker.worker_id)
        if held is not None:
            return held
        for opened in self._open.values():
            if self._may_score(worker, opened) and (index := opened.take_free()) is not None:
                opened.last_epoch += 1
                key = AssignmentKey(opened.scan.scan_id, index)
                self._leases.renew(key, worker.worker_id, opened.last_epoch)
                self._tell()
                return RangeGrant(opened.scan, key, worker.worker_id, opened.last_epoch)
        return None

    @property
    def num_wanted(self) -> int:
        """Ranges of scans of which some wait for a worker, as many as were missing at first."""
        return sum(opened.num_wanted for opened in self._open.values() if opened.waits)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever `num_wanted` has changed."""
        self._listeners.append(listener)

    async def wait(self) -> None:
        """Until ranges may have been added."""
        await self._news.wait()

    def held_by(self, worker_id: str) -> RangeGrant | None:
        """The range that a worker has."""
        key = self._leases.held_by(worker_id, ranges=True)
        lease = None if key is None else self._leases.find(key)
        if key is None or lease is None:
            return None
        return RangeGrant(self._open[key.run_id].scan, key, worker_id, lease.epoch)

    def require(self, worker_id: str, key: AssignmentKey, epoch: int) -> RangeGrant:
        """The range that a worker says it has.

        Raises:
            StaleLeaseError: the lease or the scan is over.
        """
        opened, lease = self._open.get(key.run_id), self._leases.find(key)
        if opened is None or lease is None or (lease.worker_id, lease.epoch) != (worker_id, epoch):
            why = f"the lease with epoch {epoch} is over" if opened else "nobody needs it any more"
            raise StaleLeaseError(
                f"range {key}: {why}; the result is not used. Ask for the next assignment."
            )
        return RangeGrant(opened.scan, key, worker_id, epoch)

    def is_done(self, key: AssignmentKey) -> bool:
        """Whether a range of an open scan is done."""
        opened = self._open.get(key.run_id)
        return opened is not None and key.learner in opened.done

    def heartbeat(self, worker_id: str, key: AssignmentKey, epoch: int) -> bool:
        """Keep a lease, and return whether the worker should drop the range: nobody needs it.

        Raises:
            StaleLeaseError: the lease is over.
        """
        if key.run_id not in self._open or self.is_done(key):
            return True
        self.require(worker_id, key, epoch)
        self._leases.renew(key, worker_id, epoch)
        return False

    def finish(self, grant: RangeGrant) -> None:
        """Count a worker's result that is stored."""
        opened = self._open.get(grant.key.run_id)
        if opened is not None:
            self._finish(opened, grant.key.learner, "workers")
            self._wake()

    def give_back(
        self,
        key: AssignmentKey,
        worker_id: str,
        epoch: int,
        *,
        failed: bool = False,
        declined: bool = False,
    ) -> None:
        """End a worker's lease of a range that is not done.

        Args:
            key: of the range.
            worker_id: of the worker.
            epoch: of the lease; a later one of the range goes on.
            failed: the job computes the range itself, and sees why.
            declined: the worker gets no more ranges of the scan.
        """
        held = self._leases.has(key, epoch)
        if held:
            self._leases.end(key)
        opened = self._open.get(key.run_id)
        if opened is not None:
            if declined:
                opened.excluded.add(worker_id)
            if failed:
                opened.failed.add(key.learner)
            if held:
                opened.set_free(key.learner)
            self._wake()

    def may_read(self, name: BlobName, worker_ids: Iterable[str]) -> bool:
        """Whether a blob is the weights of a range of one of these workers."""
        held = map(self.held_by, worker_ids)
        return any(grant is not None and grant.scan.weights == name for grant in held)

    def may_send(self, name: BlobName, worker_ids: Iterable[str]) -> bool:
        """Whether a blob can be the file of a range of one of these workers; noted if it is."""
        for grant in map(self.held_by, worker_ids):
            if grant is None or name.size_bytes > grant.scan.max_file_bytes:
                continue
            names = self._open[grant.key.run_id].named.setdefault(grant.epoch, set())
            if name in names or len(names) < MAX_RANGE_FILES:
                names.add(name)
                return True
        return False

    def _may_score(self, worker: WorkerRecord, opened: _Open) -> bool:
        scan = opened.scan
        return (
            worker.has_data
            and worker.worker_id not in self._distrusted | opened.excluded
            and not worker.refusal_of_model(scan.whole.model)
            and worker.versions.get("lipt", "") == scan.lipt
            and (not scan.kind or worker.kind == scan.kind)
        )

    def _finish(self, opened: _Open, index: int, by: str) -> None:
        if index not in opened.done:
            opened.done.add(index)
            self._leases.end(AssignmentKey(opened.scan.scan_id, index))
            self._meters.add(SCORED_EXAMPLES, by, by=len(opened.scan.task(index)))

    def _wake(self) -> None:
        # Wakes those who wait now; later ones wait for the next news.
        self._news.set()
        self._news = asyncio.Event()
        self._tell()

    def _tell(self) -> None:
        # Ranges come and go many times a second, and listeners look at all runs.
        if (wanted := self.num_wanted) != self._told_wanted:
            self._told_wanted = wanted
            for listener in self._listeners:
                listener()
