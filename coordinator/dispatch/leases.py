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
from typing import NamedTuple, TypeVar

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
from lipt.coordinator.state.records import Holder, LearnerRecord, Leased, RunRecord
from lipt.core.tasks import ScoringTask

# Python refuses to parse numbers of thousands of digits; no run has so many learners.
_MAX_INDEX_DIGITS = 9
# A process that wakes later than this was paused.
_MAX_LATE_SECONDS = 1.0


class LearnerAssignment(NamedTuple):
    """A run's learner; its text is RUN/INDEX."""

    run_id: str
    learner: int

    def __str__(self) -> str:
        return f"{self.run_id}/{self.learner}"

    @property
    def owner(self) -> str:
        return self.run_id


class RangeAssignment(NamedTuple):
    """A range of a scan; its text is SCAN/NUMBER."""

    scan_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.scan_id}/{self.number}"

    @property
    def owner(self) -> str:
        return self.scan_id


class LearnerLease(NamedTuple):
    """A worker's lease of a learner; the next lease of it has a higher epoch."""

    key: LearnerAssignment
    epoch: int
    worker_id: str


class RangeLease(NamedTuple):
    """A worker's lease of a range; later leases of its scan have higher epochs."""

    key: RangeAssignment
    epoch: int
    worker_id: str


AssignmentKey = LearnerAssignment | RangeAssignment
LeaseId = LearnerLease | RangeLease
LeaseT = TypeVar("LeaseT", LearnerLease, RangeLease)


def lease_of(assignment_id: str, epoch: int, worker_id: str) -> LeaseId:
    """The lease that a worker names by an assignment's text."""
    owner, _, index = assignment_id.rpartition("/")
    if not owner or not index.isdecimal() or len(index) > _MAX_INDEX_DIGITS:
        raise InvalidRequestError(f"assignment id {assignment_id!r} is not RUN/INDEX.")
    if owner.startswith(SCAN):
        return RangeLease(RangeAssignment(owner, int(index)), epoch, worker_id)
    return LearnerLease(LearnerAssignment(owner, int(index)), epoch, worker_id)


class RunLearner(NamedTuple):
    """A run and one of its learners."""

    run: RunRecord
    learner: LearnerRecord

    @property
    def key(self) -> LearnerAssignment:
        return LearnerAssignment(self.run.run_id, self.learner.index)

    @property
    def lease(self) -> LearnerLease | None:
        """Its lease, in a run in training."""
        status = self.learner.status
        if self.run.state is not RunState.TRAINING or not isinstance(status, Leased):
            return None
        return LearnerLease(self.key, self.learner.epoch, status.holder.worker_id)


class LearnerGrant(NamedTuple):
    """A learner leased to a worker."""

    run: RunRecord
    learner: LearnerRecord
    lease: LearnerLease


@dataclass(frozen=True)
class _Lease:
    """A lease and its end (monotonic seconds)."""

    id: LeaseId
    expires_at: float
    # Renewed after a pause of this process; its worker has not been heard since.
    spared: bool = False


def require_lease(run: RunRecord, lease: LearnerLease) -> Holder:
    """The worker that holds a lease, as the record has it."""
    learner = run.learners[lease.key.learner]
    current = RunLearner(run, learner).lease
    if current == lease and isinstance(learner.status, Leased):
        return learner.status.holder
    now = f"its epoch is {current.epoch}" if current else "it is not assigned now"
    raise StaleLeaseError(
        f"learner {lease.key}: the lease with epoch {lease.epoch} is over ({now}); "
        "the result is not used. Ask for the next assignment."
    )


class LeaseTable:
    """The leases of one coordinator."""

    def __init__(self, duration_seconds: float, clock: Callable[[], float]) -> None:
        self.duration_seconds = duration_seconds
        self._clock = clock
        self._leases: dict[AssignmentKey, _Lease] = {}
        # The same by worker; one has several only if an answer was lost.
        self._held: dict[str, dict[AssignmentKey, LeaseId]] = {}
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
            entry = RunLearner(run, learner)
            place = bisect_left(queued, learner.index)
            was_queued = queued[place : place + 1] == [learner.index]
            if was_queued and learner.state is not LearnerState.QUEUED:
                del queued[place]
            elif learner.state is LearnerState.QUEUED and not was_queued:
                insort(queued, learner.index)
            if entry.lease is None or not self.has(entry.lease):
                self.end(entry.key)
                if entry.lease is not None:
                    self.renew(entry.lease)

    def queued(self, run_id: str) -> Sequence[int]:
        return self._queued.get(run_id, ())

    def renew(self, lease: LeaseId) -> None:
        if not self._leases:
            self._added.set()
        self._leases[lease.key] = _Lease(lease, self._clock() + self.duration_seconds)
        self._held.setdefault(lease.worker_id, {})[lease.key] = lease

    def extend(self, key: AssignmentKey, seconds: float) -> None:
        lease = self._leases.get(key)
        if lease is not None:
            self._leases[key] = replace(lease, expires_at=self._clock() + seconds)

    def end(self, key: AssignmentKey) -> None:
        lease = self._leases.pop(key, None)
        if lease is None:
            return
        worker_id = lease.id.worker_id
        del self._held[worker_id][key]
        if not self._held[worker_id]:
            del self._held[worker_id]

    def end_all(self, owner: str) -> None:
        """End the leases of a run or scan."""
        for key in [key for key in self._leases if key.owner == owner]:
            self.end(key)

    def held_by(self, worker_id: str, kind: type[LeaseT]) -> LeaseT | None:
        held = self._held.get(worker_id, {}).values()
        return next((lease for lease in held if isinstance(lease, kind)), None)

    def has(self, lease: LeaseId) -> bool:
        known = self._leases.get(lease.key)
        return known is not None and known.id == lease

    def num_learners(self) -> int:
        return sum(isinstance(key, LearnerAssignment) for key in self._leases)

    def holders(self) -> AbstractSet[str]:
        return self._held.keys()

    def expired(self) -> tuple[LeaseId, ...]:
        now = self._clock()
        return tuple(lease.id for lease in self._leases.values() if lease.expires_at <= now)

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
    lease: RangeLease
    challenge: Challenge

    @property
    def task(self) -> ScoringTask:
        """The range's task, with what asks for a proof of the data."""
        task, asked = self.scan.task(self.lease.key.number), self.challenge
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
                key = RangeAssignment(opened.scan.scan_id, index)
                lease = RangeLease(key, opened.last_epoch, worker.worker_id)
                self._leases.renew(lease)
                self._on_change()
                return RangeGrant(opened.scan, lease, opened.challenge)
        return None

    @property
    def num_wanted(self) -> int:
        """Ranges missing at the start of those scans that have free ranges."""
        return sum(opened.num_wanted for opened in self._open.values() if opened.free)

    def held_by(self, worker_id: str) -> RangeGrant | None:
        lease = self._leases.held_by(worker_id, RangeLease)
        return None if lease is None else self.require(lease)

    def require(self, lease: RangeLease) -> RangeGrant:
        opened = self._open.get(lease.key.scan_id)
        if opened is None or not self._leases.has(lease):
            over = f"the lease with epoch {lease.epoch} is over"
            why = over if opened else "it is not needed any more"
            raise StaleLeaseError(
                f"range {lease.key}: {why}; the result is not used. Ask for the next assignment."
            )
        return RangeGrant(opened.scan, lease, opened.challenge)

    def is_done(self, key: RangeAssignment) -> bool:
        opened = self._open.get(key.scan_id)
        return opened is not None and key.number in opened.done

    def heartbeat(self, lease: RangeLease) -> bool:
        """Renew a lease, and return whether the worker should drop its range."""
        if lease.key.scan_id not in self._open or self.is_done(lease.key):
            return True
        self.require(lease)
        self._leases.renew(lease)
        return False

    def finish(self, grant: RangeGrant) -> None:
        key = grant.lease.key
        if opened := self._open.get(key.scan_id):
            self._finish(opened, key.number, "workers")
            self._on_change()

    def give_back(self, lease: RangeLease, *, failed: bool = False) -> None:
        """End a worker's lease of a range."""
        key, held = lease.key, self._leases.has(lease)
        if held:
            self._leases.end(key)
        if opened := self._open.get(key.scan_id):
            if failed:
                opened.failed.add(key.number)
            if held:
                opened.set_free(key.number)
            self._on_change()

    def _may_score(self, worker: WorkerRecord, opened: _Open) -> bool:
        scan = opened.scan
        return (
            worker.has_data
            and worker.caller.may_score
            and worker.caller.label not in self._distrusted
            and scan.scan_id not in worker.declined
            and not worker.refusal_of_model(scan.whole.model)
            and worker.versions.get("lipt", "") == scan.lipt
            and (not scan.kind or worker.kind == scan.kind)
        )

    def _finish(self, opened: _Open, index: int, by: str) -> None:
        if index not in opened.done:
            opened.done.add(index)
            opened.free.discard(index)
            self._leases.end(RangeAssignment(opened.scan.scan_id, index))
            self._meters.add(SCORED_EXAMPLES, by, by=len(opened.scan.task(index)))


def steady_clock(
    wall_clock: Callable[[], float], monotonic: Callable[[], float]
) -> Callable[[], float]:
    """Seconds since 1970 that advance with the monotonic clock, for stored deadlines."""
    offset = wall_clock() - monotonic()
    return lambda: monotonic() + offset


def forward_clock(
    wall_clock: Callable[[], float], monotonic: Callable[[], float]
) -> Callable[[], float]:
    """The wall clock, or the steady one while the wall clock is behind: for credentials."""
    steady = steady_clock(wall_clock, monotonic)
    return lambda: max(wall_clock(), steady())
