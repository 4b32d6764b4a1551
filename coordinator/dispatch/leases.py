"""Leases of learners and of ranges, and the queued learners and open scans that they come from.

Run records hold learners' leases. The table adds end times in memory, so a heartbeat needs no
write. Scans and leases of ranges exist in memory only. A range is a part of a pass over the data:
workers that have the data and may score take ranges from the front, and the job computes missing
ones from the end. Workers on other kinds of machines, or of distrusted credentials, get none.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from lipt.common.config.tasks import ScoringTask
from lipt.common.errors import InvalidRequestError, StaleLeaseError
from lipt.common.observability.metrics import Meters
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.compute.messages import ScanClosed, ScanNews
from lipt.coordinator.compute.scan import (
    SCAN,
    Challenge,
    CredentialDistrusted,
    RangeDone,
    Scan,
    ScanOpened,
)
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.instruments import SCORED_EXAMPLES
from lipt.coordinator.state.records import LearnerRecord, RunRecord

# Python refuses to parse numbers of thousands of digits; no run has so many learners.
_MAX_INDEX_DIGITS = 9
# A process that wakes later than this was paused.
_MAX_LATE_SECONDS = 1.0


class AssignmentKey(NamedTuple):
    """A learner ("RUN/INDEX") or a range ("SCAN/INDEX")."""

    run_id: str
    learner: int

    def __str__(self) -> str:
        return f"{self.run_id}/{self.learner}"

    @classmethod
    def parse(cls, text: str) -> Self:
        run_id, _, index = text.rpartition("/")
        if not run_id or not index.isdecimal() or len(index) > _MAX_INDEX_DIGITS:
            raise InvalidRequestError(f"assignment id {text!r} is not RUN/INDEX.")
        return cls(run_id, int(index))

    @property
    def is_range(self) -> bool:
        return self.run_id.startswith(SCAN)


@dataclass(frozen=True)
class Lease:
    """A lease's holder and end (monotonic seconds)."""

    worker_id: str
    epoch: int
    expires_at: float
    # Renewed after a pause of this process; its worker has not been heard since.
    spared: bool = False


def require_lease(run: RunRecord, key: AssignmentKey, worker_id: str, epoch: int) -> None:
    learner = run.learners[key.learner]
    is_out = _is_out(run, learner)
    if not is_out or learner.worker_id != worker_id or learner.epoch != epoch:
        now = f"its epoch is {learner.epoch}" if is_out else "it is not assigned now"
        raise StaleLeaseError(
            f"learner {key}: the lease with epoch {epoch} is over ({now}); "
            "the result is not used. Ask for the next assignment."
        )


def _is_out(run: RunRecord, learner: LearnerRecord) -> bool:
    return run.state is RunState.TRAINING and learner.state is LearnerState.LEASED


class LeaseTable:
    """The leases of one coordinator."""

    def __init__(self, duration_seconds: float, clock: Callable[[], float]) -> None:
        self.duration_seconds = duration_seconds
        self._clock = clock
        self._leases: dict[AssignmentKey, Lease] = {}
        # The same by worker; one has several only if an answer was lost.
        self._held: dict[str, dict[AssignmentKey, None]] = {}
        # Indices of queued learners by run in training, ascending.
        self._queued: dict[str, list[int]] = {}
        self._added = asyncio.Event()

    def follow(self, run: RunRecord, learners: Iterable[LearnerRecord]) -> None:
        """Apply a durable record's changed learners; active leases are not renewed."""
        if run.state is not RunState.TRAINING:
            self._queued.pop(run.run_id, None)
            self.end_all(run.run_id)
            return
        queued = self._queued.setdefault(run.run_id, [])
        for learner in learners:
            key = AssignmentKey(run.run_id, learner.index)
            place = bisect_left(queued, learner.index)
            was_queued = queued[place : place + 1] == [learner.index]
            if was_queued and learner.state is not LearnerState.QUEUED:
                del queued[place]
            elif learner.state is LearnerState.QUEUED and not was_queued:
                insort(queued, learner.index)
            if not _is_out(run, learner):
                self.end(key)
            elif not self.has(key, learner.epoch):
                self.end(key)
                self.renew(key, learner.worker_id, learner.epoch)

    def queued(self, run_id: str) -> Sequence[int]:
        return self._queued.get(run_id, ())

    def renew(self, key: AssignmentKey, worker_id: str, epoch: int) -> None:
        if not self._leases:
            self._added.set()
        self._leases[key] = Lease(worker_id, epoch, self._clock() + self.duration_seconds)
        self._held.setdefault(worker_id, {})[key] = None

    def extend(self, key: AssignmentKey, seconds: float) -> None:
        lease = self._leases.get(key)
        if lease is not None:
            self._leases[key] = replace(lease, expires_at=self._clock() + seconds)

    def end(self, key: AssignmentKey) -> None:
        lease = self._leases.pop(key, None)
        if lease is None:
            return
        held = self._held[lease.worker_id]
        del held[key]
        if not held:
            del self._held[lease.worker_id]

    def end_all(self, run_id: str) -> None:
        for key in [key for key in self._leases if key.run_id == run_id]:
            self.end(key)

    def find(self, key: AssignmentKey) -> Lease | None:
        return self._leases.get(key)

    def held_by(self, worker_id: str, *, ranges: bool = False) -> AssignmentKey | None:
        held = self._held.get(worker_id, ())
        return next((key for key in held if key.is_range is ranges), None)

    def has(self, key: AssignmentKey, epoch: int) -> bool:
        lease = self._leases.get(key)
        return lease is not None and lease.epoch == epoch

    def num_learners(self) -> int:
        return sum(not key.is_range for key in self._leases)

    def holders(self) -> AbstractSet[str]:
        return self._held.keys()

    def expired(self) -> tuple[tuple[AssignmentKey, Lease], ...]:
        now = self._clock()
        return tuple(item for item in self._leases.items() if item[1].expires_at <= now)

    async def wait_until_due(self) -> float:
        """Wait until a lease may have expired or one begins; return the seconds of a pause.

        A paused process (SIGSTOP, VM migration) receives no calls, so it renews leases afterwards.
        Each is renewed only once until its worker calls.
        """
        self._added.clear()
        now = self._clock()
        ends = min((lease.expires_at for lease in self._leases.values()), default=math.inf)
        due = max(ends, now)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due == math.inf else due - now):
                await self._added.wait()
        now = self._clock()
        late = now - due
        if late <= _MAX_LATE_SECONDS:
            return 0.0
        anew = now + self.duration_seconds
        for key, lease in self._leases.items():
            if not lease.spared:
                self._leases[key] = replace(lease, expires_at=anew, spared=True)
        return late


@dataclass(frozen=True)
class RangeGrant:
    """A range leased to a worker."""

    scan: Scan
    key: AssignmentKey
    worker_id: str
    epoch: int
    challenge: Challenge

    @property
    def task(self) -> ScoringTask:
        """The range's task, with what asks for a proof of the data."""
        task, asked = self.scan.task(self.key.learner), self.challenge
        return replace(task, nonce=asked.nonce, proof_ids=asked.ids)

    def __str__(self) -> str:
        return f"examples {self.task.start} to {self.task.stop - 1}"


@dataclass
class _Open:
    scan: Scan
    challenge: Challenge
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
        # Credentials that sent wrong values or proofs, until the coordinator ends.
        self._distrusted: set[str] = set()
        self._on_change = on_change

    def note(self, news: ScanNews) -> None:
        opened = self._open.get(news.scan_id)
        match news:
            case ScanOpened(scan=scan, present=present, challenge=challenge):
                # A repeated job opens the scan again without having closed it.
                self._leases.end_all(scan.scan_id)
                free = set(range(scan.num_ranges)) - present
                opened = _Open(scan, challenge, set(present), free, len(free))
                self._open[scan.scan_id] = opened
            case ScanClosed():
                self._open.pop(news.scan_id, None)
                self._leases.end_all(news.scan_id)
            case RangeDone() if opened is not None:
                self._finish(opened, news.index, "coordinator")
            case CredentialDistrusted():
                self.distrust(news.credential)
                if opened is not None:
                    opened.done -= news.ranges
                    for index in news.ranges:
                        opened.set_free(index)
        self._on_change()

    def distrust(self, credential: str) -> None:
        """Give a credential's workers no more ranges."""
        self._distrusted.add(credential)

    def take(self, worker: WorkerRecord) -> RangeGrant | None:
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
                return self._grant(opened, key, worker.worker_id, opened.last_epoch)
        return None

    def _grant(self, opened: _Open, key: AssignmentKey, worker_id: str, epoch: int) -> RangeGrant:
        return RangeGrant(opened.scan, key, worker_id, epoch, opened.challenge)

    @property
    def num_wanted(self) -> int:
        """Ranges missing at the start of those scans that have free ranges."""
        return sum(opened.num_wanted for opened in self._open.values() if opened.free)

    def held_by(self, worker_id: str) -> RangeGrant | None:
        key = self._leases.held_by(worker_id, ranges=True)
        lease = None if key is None else self._leases.find(key)
        if key is None or lease is None:
            return None
        return self._grant(self._open[key.run_id], key, worker_id, lease.epoch)

    def require(self, worker_id: str, key: AssignmentKey, epoch: int) -> RangeGrant:
        opened, lease = self._open.get(key.run_id), self._leases.find(key)
        if opened is None or lease is None or (lease.worker_id, lease.epoch) != (worker_id, epoch):
            why = f"the lease with epoch {epoch} is over" if opened else "it is not needed any more"
            raise StaleLeaseError(
                f"range {key}: {why}; the result is not used. Ask for the next assignment."
            )
        return self._grant(opened, key, worker_id, epoch)

    def is_done(self, key: AssignmentKey) -> bool:
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
            and worker.binding.caller.may_score
            and worker.binding.caller.scorer not in self._distrusted
            and worker.worker_id not in opened.excluded
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


def steady_clock(
    wall_clock: Callable[[], float], monotonic: Callable[[], float]
) -> Callable[[], float]:
    """Seconds since 1970 that advance with the monotonic clock, for stored deadlines."""
    offset = wall_clock() - monotonic()
    return lambda: monotonic() + offset
