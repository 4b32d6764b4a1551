"""Open scans: gives ranges of passes over the data to workers that have it.

A worker whose machine is not of the scan's kind gets none; nor does one that sent wrong values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lipt.common.blobs.blob import BlobName
from lipt.common.config.tasks import ScoringTask
from lipt.common.errors import StaleLeaseError
from lipt.common.observability.metrics import Meters
from lipt.coordinator.compute.scan import (
    SCAN,
    RangeDone,
    Scan,
    ScanClosed,
    ScanNews,
    ScanOpened,
    WorkerDistrusted,
)
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.ranges import RangeLease, RangeTable
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.instruments import SCORED_EXAMPLES

# One file is a range's; a worker that comes back to it may get other bits.
MAX_RANGE_FILES = 2


@dataclass(frozen=True)
class RangeGrant:
    """A range that a worker has the lease of."""

    scan: Scan
    lease: RangeLease

    @property
    def key(self) -> AssignmentKey:
        """As workers name it."""
        return AssignmentKey(self.scan.scan_id, self.lease.index)

    @property
    def task(self) -> ScoringTask:
        """What is to be computed."""
        return self.scan.task(self.lease.index)

    def __str__(self) -> str:
        return f"examples {self.task.start} to {self.task.stop - 1}"


@dataclass(frozen=True)
class _Open:
    scan: Scan
    table: RangeTable
    # Of its ranges, those that were not there when it was opened.
    num_wanted: int
    # By epoch, what workers have named to be sent.
    named: dict[int, set[BlobName]] = field(default_factory=dict)


class Scans:
    """The scans that are open; for one event loop."""

    def __init__(
        self,
        lease_seconds: float,
        clock: Callable[[], float],
        meters: Meters | None = None,
    ) -> None:
        """Begin with none.

        Args:
            lease_seconds: how long a worker may be silent.
            clock: monotonic seconds.
            meters: where examples are counted.
        """
        self.lease_seconds = lease_seconds
        self._clock = clock
        self._meters = meters or Meters()
        self._open: dict[str, _Open] = {}
        self._liars: set[str] = set()
        self._news = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._told_wanted = 0

    def note(self, news: ScanNews) -> None:
        """Take what a job says of its scan."""
        match news:
            case ScanOpened(scan=Scan() as scan, present=present):
                table = RangeTable(scan.num_ranges, present)
                self._open[scan.scan_id] = _Open(scan, table, scan.num_ranges - len(present))
            case ScanClosed():
                self._open.pop(news.scan_id, None)
            case RangeDone() if news.scan_id in self._open:
                self._finish(self._open[news.scan_id], news.index, "coordinator")
            case WorkerDistrusted() if news.scan_id in self._open:
                self._liars.add(news.worker_id)
                self._open[news.scan_id].table.exclude(news.worker_id, news.ranges)
        self._wake()

    def take(self, worker: WorkerRecord) -> RangeGrant | None:
        """The worker's range, the one that it has or the next one; None where there is none."""
        held = self.held_by(worker.worker_id)
        if held is not None:
            return held
        for opened in self._open.values():
            if self._may_score(worker, opened.scan):
                lease = opened.table.take(
                    worker.worker_id, self._clock(), lease_seconds=self.lease_seconds
                )
                if lease is not None:
                    self._tell()
                    return RangeGrant(opened.scan, lease)
        return None

    @property
    def num_wanted(self) -> int:
        """The ranges of scans of which some wait for a worker, as many as there were at first."""
        return sum(opened.num_wanted for opened in self._open.values() if opened.table.waits)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever `num_wanted` has changed."""
        self._listeners.append(listener)

    async def wait(self) -> None:
        """Until there may be ranges that there were not."""
        await self._news.wait()

    def held_by(self, worker_id: str) -> RangeGrant | None:
        """The range that a worker has."""
        for opened in self._open.values():
            lease = opened.table.held_by(worker_id)
            if lease is not None:
                return RangeGrant(opened.scan, lease)
        return None

    def has(self, key: AssignmentKey, epoch: int) -> bool:
        """Whether a lease holds."""
        opened = self._open.get(key.run_id)
        return opened is not None and opened.table.find(key.learner, epoch) is not None

    def require(self, worker_id: str, key: AssignmentKey, epoch: int) -> RangeGrant:
        """What a worker has the lease of, as it says.

        Raises:
            StaleLeaseError: the lease is over, or what the range was for has ended.
        """
        opened = self._open.get(key.run_id)
        lease = None if opened is None else opened.table.find(key.learner, epoch)
        if opened is None or lease is None or lease.worker_id != worker_id:
            why = f"the lease with epoch {epoch} is over" if opened else "nobody needs it any more"
            raise StaleLeaseError(
                f"range {key}: {why}; the result is not used. Ask for the next assignment."
            )
        return RangeGrant(opened.scan, lease)

    def is_done(self, key: AssignmentKey) -> bool:
        """Whether a range of an open scan is there."""
        opened = self._open.get(key.run_id)
        return opened is not None and opened.table.is_done(key.learner)

    def heartbeat(self, worker_id: str, key: AssignmentKey, epoch: int) -> bool:
        """Keep a lease.

        Returns:
            Whether the worker should drop the range, because it is done or nobody needs it.

        Raises:
            StaleLeaseError: the lease is over.
        """
        opened = self._open.get(key.run_id)
        if opened is None or opened.table.is_done(key.learner):
            return True
        lease = self.require(worker_id, key, epoch).lease
        opened.table.renew(lease, self._clock(), lease_seconds=self.lease_seconds)
        return False

    def finish(self, grant: RangeGrant) -> None:
        """A worker's result is in."""
        opened = self._open.get(grant.scan.scan_id)
        if opened is not None:
            self._finish(opened, grant.lease.index, "workers")
            self._wake()

    def give_back(self, grant: RangeGrant, *, failed: bool = False, declined: bool = False) -> None:
        """A worker has a range no more, undone.

        Args:
            grant: what it had.
            failed: on it: the job computes the range itself.
            declined: it is not for this worker, which gets none of the scan.
        """
        opened = self._open.get(grant.scan.scan_id)
        if opened is not None:
            if declined:
                opened.table.exclude(grant.lease.worker_id)
            opened.table.end(grant.lease, failed=failed)
            self._wake()

    def may_read(self, name: BlobName, worker_ids: Iterable[str]) -> bool:
        """Whether one of these workers has a range whose weights a blob is."""
        held = map(self.held_by, worker_ids)
        return any(grant is not None and grant.scan.weights == name for grant in held)

    def may_send(self, name: BlobName, worker_ids: Iterable[str]) -> bool:
        """Whether one of these workers has a range whose file a blob can be; noted where it is."""
        for grant in map(self.held_by, worker_ids):
            if grant is None or name.size_bytes > grant.scan.max_file_bytes:
                continue
            opened = self._open[grant.scan.scan_id]
            names = opened.named.setdefault(grant.lease.epoch, set())
            if name in names or len(names) < MAX_RANGE_FILES:
                names.add(name)
                return True
        return False

    def _may_score(self, worker: WorkerRecord, scan: Scan) -> bool:
        return (
            worker.has_data
            and worker.worker_id not in self._liars
            and not worker.refusal_of_model(scan.whole.model)
            and worker.versions.get("lipt", "") == scan.lipt
            and (not scan.kind or worker.kind == scan.kind)
        )

    def _finish(self, opened: _Open, index: int, by: str) -> None:
        if not opened.table.is_done(index):
            opened.table.finish(index)
            self._meters.add(SCORED_EXAMPLES, by, by=len(opened.scan.task(index)))

    def _wake(self) -> None:
        # Whoever waits now is woken; whoever comes later waits for the next news.
        self._news.set()
        self._news = asyncio.Event()
        self._tell()

    def _tell(self) -> None:
        # Ranges come and go many times a second, and whoever listens looks at all runs.
        if (wanted := self.num_wanted) != self._told_wanted:
            self._told_wanted = wanted
            for listener in self._listeners:
                listener()


def is_range(key: AssignmentKey) -> bool:
    """Whether an assignment is a range, of a scan that is open or was."""
    return key.run_id.startswith(SCAN)
