"""Open scans: ranges of passes over the data, for workers that have it.

Workers take ranges from the front; the job computes missing ones from the end. Workers on other
kinds of machines, or with wrong values, get none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lipt.common.config.tasks import ScoringTask
from lipt.common.errors import StaleLeaseError
from lipt.common.observability.metrics import Meters
from lipt.coordinator.compute.messages import ScanClosed, ScanNews
from lipt.coordinator.compute.scan import RangeDone, Scan, ScanOpened, WorkerDistrusted
from lipt.coordinator.dispatch.leases import AssignmentKey, LeaseTable
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.instruments import SCORED_EXAMPLES


@dataclass(frozen=True)
class RangeGrant:
    """A range leased to a worker."""

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
    # Ranges that wait for a worker.
    free: set[int]
    # The number of ranges that were missing when the scan was opened.
    num_wanted: int
    # Ranges that failed on a worker: the job computes them.
    failed: set[int] = field(default_factory=set)
    excluded: set[str] = field(default_factory=set)
    last_epoch: int = 0

    def set_free(self, index: int) -> None:
        if index not in self.done | self.failed:
            self.free.add(index)


class Scans:
    """The open scans; for one event loop."""

    def __init__(
        self,
        leases: LeaseTable,
        meters: Meters | None = None,
        *,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Start without scans; `on_change` is called after ranges are added, leased or done."""
        self._leases = leases
        self._meters = meters or Meters()
        self._open: dict[str, _Open] = {}
        self._distrusted: set[str] = set()
        self._on_change = on_change

    def note(self, news: ScanNews) -> None:
        """Handle a job's message about its scan."""
        opened = self._open.get(news.scan_id)
        match news:
            case ScanOpened(scan=scan, present=present):
                # A repeated job opens the scan again without having closed it.
                self._leases.end_all(scan.scan_id)
                free = set(range(scan.num_ranges)) - present
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
        self._on_change()

    def take(self, worker: WorkerRecord) -> RangeGrant | None:
        """The worker's leased range, or else its next one."""
        held = self.held_by(worker.worker_id)
        if held is not None:
            return held
        for opened in self._open.values():
            if opened.free and self._may_score(worker, opened):
                index = min(opened.free)
                opened.free.remove(index)
                opened.last_epoch += 1
                key = AssignmentKey(opened.scan.scan_id, index)
                self._leases.renew(key, worker.worker_id, opened.last_epoch)
                self._on_change()
                return RangeGrant(opened.scan, key, worker.worker_id, opened.last_epoch)
        return None

    @property
    def num_wanted(self) -> int:
        """Ranges missing at the start of those scans that have free ranges."""
        return sum(opened.num_wanted for opened in self._open.values() if opened.free)

    def held_by(self, worker_id: str) -> RangeGrant | None:
        """The range that a worker has leased."""
        key = self._leases.held_by(worker_id, ranges=True)
        lease = None if key is None else self._leases.find(key)
        if key is None or lease is None:
            return None
        return RangeGrant(self._open[key.run_id].scan, key, worker_id, lease.epoch)

    def require(self, worker_id: str, key: AssignmentKey, epoch: int) -> RangeGrant:
        """The range that a worker claims; a StaleLeaseError if the lease is over."""
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
        """Renew a lease, and return whether the worker should drop its range."""
        if key.run_id not in self._open or self.is_done(key):
            return True
        self.require(worker_id, key, epoch)
        self._leases.renew(key, worker_id, epoch)
        return False

    def finish(self, grant: RangeGrant) -> None:
        """Mark a worker's stored range as done."""
        opened = self._open.get(grant.key.run_id)
        if opened is not None:
            self._finish(opened, grant.key.learner, "workers")
            self._on_change()

    def give_back(
        self,
        key: AssignmentKey,
        worker_id: str,
        epoch: int,
        *,
        failed: bool = False,
        declined: bool = False,
    ) -> None:
        """End a worker's lease of a range; after `declined` it gets no more of this scan."""
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
            self._on_change()

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
            opened.free.discard(index)
            self._leases.end(AssignmentKey(opened.scan.scan_id, index))
            self._meters.add(SCORED_EXAMPLES, by, by=len(opened.scan.task(index)))
