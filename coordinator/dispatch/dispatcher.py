"""Dispatcher: leases learners and scan ranges to workers, and takes their results.

Waiting workers are served in order of arrival. Matching reserves learners; each lease is then
written even if the worker's call was cut. The worker gets it when it asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import InvalidRequestError, LiptError, StaleLeaseError
from lipt.common.observability.logs import EventKind, Events, logging_about
from lipt.common.observability.metrics import Meters
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch import policy
from lipt.coordinator.dispatch.leases import (
    LearnerAssignment,
    LearnerGrant,
    LearnerLease,
    LeaseId,
    LeaseTable,
    RangeGrant,
    RangeLease,
    RunLearner,
    Scans,
    require_lease,
)
from lipt.coordinator.dispatch.workers import WorkerRecord, WorkerRegistry
from lipt.coordinator.runs.store import LearnerProgress, RunStore
from lipt.coordinator.runs.transitions import (
    Verification,
    after_failure,
    has_result,
    requeued,
    with_result,
)
from lipt.coordinator.state.records import (
    Holder,
    LearnerFailure,
    LearnerRecord,
    LearnerResult,
    Leased,
    RunRecord,
    SilentEnd,
)

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
# A worker that can train none of the queued learners soon hears why. A thousand of one token stay
# below its 200 calls a second.
_IDLE_POLL_SECONDS = 10.0
_BEFORE_TRAINING = frozenset({RunState.PENDING, RunState.INITIALIZING, RunState.SHARDING})


@dataclass(frozen=True)
class Demand:
    """Open learners (queued, leased, or of runs before training) and wanted ranges."""

    num_queued: int = 0
    num_leased: int = 0
    num_upcoming: int = 0
    num_ranges: int = 0


class Dispatcher:
    """Matches queued learners and scan ranges with workers that ask for work."""

    def __init__(
        self,
        store: RunStore,
        *,
        lease_seconds: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        events: Events | None = None,
        meters: Meters | None = None,
    ) -> None:
        """Create a dispatcher; `clock` times leases, `wall_clock` times deadlines."""
        self._store = store
        self._wall_clock = wall_clock
        self._events = events or Events()
        self.workers = WorkerRegistry(clock, wall_clock)
        self.leases = LeaseTable(lease_seconds, clock)
        self.scans = Scans(self.leases, meters, on_change=self._on_change)
        # Long polls by worker, in order of arrival.
        self._polls: dict[str, asyncio.Future[LearnerAssignment | RangeGrant]] = {}
        self._is_to_match = False
        # Learners whose lease is being written, and the writing tasks by worker.
        self._reserved: set[LearnerAssignment] = set()
        self._granting: dict[str, asyncio.Task[LearnerGrant | None]] = {}
        # Workers whose lease expired and that have not called since.
        self._silent: set[str] = set()
        self._demand_changed = asyncio.Event()
        store.listen(self.leases.follow)
        store.listen(lambda *_: self._on_change())

    def restore(self) -> None:
        for run in self._store.live():
            self.leases.follow(run, run.learners)
            for learner in run.learners:
                self._silent.update(end.worker_id for end in learner.silent_ends)

    def alive(self) -> tuple[WorkerRecord, ...]:
        return self.workers.alive(self.leases.holders() | self._polls.keys())

    def num_waiting(self) -> int:
        return len(self._polls)

    def seconds_since_last_call(self, worker: WorkerRecord) -> float:
        """Seconds since the worker's last call; 0 while it waits for work."""
        waits = worker.worker_id in self._polls
        return 0.0 if waits else self.workers.seconds_since_last_call(worker)

    def held_by(self, worker_id: str) -> LearnerGrant | None:
        lease = self.leases.held_by(worker_id, LearnerLease)
        return None if lease is None else LearnerGrant(*self._learner(lease.key), lease)

    def idle_reason(self, worker: WorkerRecord) -> str:
        if worker.worker_id in self.leases.holders():
            return ""
        return policy.idle_reason(worker, self._waiting_learners())

    def waiting_reason(self, run: RunRecord) -> str:
        waiting = policy.QueuedLearners(run, self.leases.queued(run.run_id))
        # Most runs have no queued learner, and there may be thousands of workers to check.
        if not waiting.indices:
            return ""
        return policy.waiting_reason(waiting, alive=self.alive(), silent=self._silent)

    def demand(self) -> Demand:
        learners: Counter[LearnerState] = Counter()
        num_upcoming = 0
        for run in self._store.live():
            if self._store.held(run.run_id):
                continue
            if run.state is RunState.TRAINING:
                # A pool cannot start workers that hold a source.
                learners += Counter(
                    learner.state for learner in run.learners if not learner.own_source
                )
            elif run.state in _BEFORE_TRAINING:
                num_upcoming += run.config.learners.num_learners
        return Demand(
            learners[LearnerState.QUEUED],
            learners[LearnerState.LEASED],
            num_upcoming,
            self.scans.num_wanted,
        )

    async def wait_for_demand(self, known: Demand | None, *, wait_seconds: float) -> Demand:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                while self.demand() == known:
                    await self._demand_changed.wait()
        return self.demand()

    async def next_work(
        self, worker_id: str, *, wait_seconds: float
    ) -> LearnerGrant | RangeGrant | None:
        """Lease a worker's next range or learner; None at the timeout."""
        worker = self.workers.note_call(worker_id)
        self._silent.discard(worker_id)
        if held := self.held_by(worker_id):
            return held
        if grant := self.scans.take(worker):
            return grant
        if worker_id in self._granting:  # to an earlier call, which was cut
            return await asyncio.shield(self._granting[worker_id])
        if self.idle_reason(worker):
            wait_seconds = min(wait_seconds, _IDLE_POLL_SECONDS)
        work = await self._poll(worker_id, wait_seconds)
        if not isinstance(work, LearnerAssignment):
            return work
        granting = asyncio.create_task(self._grant(work, worker_id))
        self._granting[worker_id] = granting
        return await asyncio.shield(granting)

    async def _poll(
        self, worker_id: str, wait_seconds: float
    ) -> LearnerAssignment | RangeGrant | None:
        if earlier := self._polls.pop(worker_id, None):
            earlier.cancel()
        poll: asyncio.Future[LearnerAssignment | RangeGrant]
        poll = self._polls[worker_id] = asyncio.get_running_loop().create_future()
        self._match_soon()
        try:
            await asyncio.wait({poll}, timeout=wait_seconds)
        except asyncio.CancelledError:
            work = poll.result() if poll.done() and not poll.cancelled() else None
            if isinstance(work, LearnerAssignment):
                self._reserved.discard(work)
                self._match_soon()
            raise
        finally:
            if self._polls.get(worker_id) is poll:
                del self._polls[worker_id]
        if poll.done() and not poll.cancelled():
            return poll.result()
        self.workers.note_call(worker_id)
        return None

    async def _grant(self, key: LearnerAssignment, worker_id: str) -> LearnerGrant | None:
        """Write a learner's lease; None if the run was closed or held meanwhile."""
        worker = self.workers.note_call(worker_id)

        def change(run: RunRecord) -> RunRecord:
            learner = run.learners[key.learner]
            queued = run.state is RunState.TRAINING and learner.state is LearnerState.QUEUED
            if not queued or self._store.held(run.run_id):
                return run
            now = self._wall_clock()
            holder = Holder(
                worker_id=worker_id,
                worker_name=worker.name,
                device=worker.device,
                credential=worker.credential,
                kind=worker.kind,
                leased_at=now,
            )
            granted = learner.changed(status=Leased(holder=holder), epoch=learner.epoch + 1)
            started = run.training_started_at or now
            return run.changed(training_started_at=started).with_learner(granted)

        try:
            run = await self._store.update(key.run_id, change)
        finally:
            self._reserved.discard(key)
            self._granting.pop(worker_id, None)
        learner = run.learners[key.learner]
        lease = RunLearner(run, learner).lease
        if lease is None or lease.worker_id != worker_id:
            return None
        # With copies, a second lease is redundancy, not a failure.
        if learner.epoch > 1 and not learner.unconfirmed:
            self._record(EventKind.LEARNER_REASSIGNED, lease, learner.latest_reason)
        return LearnerGrant(run, learner, lease)

    def _waiting_learners(self) -> list[policy.QueuedLearners]:
        queues = (
            policy.QueuedLearners(run, self.leases.queued(run.run_id)) for run in self._store.live()
        )
        return [waiting for waiting in queues if waiting.indices]

    def _on_change(self) -> None:
        # Wakes the current waiters; later ones wait for the next change.
        self._demand_changed.set()
        self._demand_changed = asyncio.Event()
        self._match_soon()

    def _match_soon(self) -> None:
        if self._polls and not self._is_to_match:
            self._is_to_match = True
            asyncio.get_running_loop().call_soon(self._match)

    def _match(self) -> None:
        self._is_to_match = False
        # Learners of held runs are not leased; leased ones may still be committed.
        waiting = [
            queue for queue in self._waiting_learners() if not self._store.held(queue.run.run_id)
        ]
        reserved, now = self._reserved.copy(), self._wall_clock()
        offers = policy.candidates(waiting, now=now, reserved=reserved, silent=self._silent)
        free = {candidate.key: candidate for candidate in offers}
        alive = cache(self.alive)
        for worker_id, poll in tuple(self._polls.items()):
            # Checking a thousand workers after each grant would block the loop.
            if not free and not self.scans.num_wanted:
                return
            worker = self.workers.find(worker_id)
            if worker is None:  # forgotten: too many others have registered since
                continue
            if grant := self.scans.take(worker):
                poll.set_result(grant)
                del self._polls[worker_id]
            elif chosen := policy.choose_learner(worker, free.values(), alive=alive):
                poll.set_result(chosen.key)
                del self._polls[worker_id]
                self._reserved.add(chosen.key)
                del free[chosen.key]

    def heartbeat(self, lease: LeaseId, progress: LearnerProgress) -> bool:
        """Renew a lease, and return whether the worker should drop its learner."""
        if self.workers.find(lease.worker_id):
            self.workers.note_call(lease.worker_id)
        if isinstance(lease, RangeLease):
            return self.scans.heartbeat(lease)
        run, learner = self._learner(lease.key)
        if run.state.ended or learner.state is LearnerState.DROPPED:
            return True
        require_lease(run, lease)
        self.leases.renew(lease)
        self._store.set_progress(run.run_id, learner.index, progress)
        return False

    async def commit(self, lease: LearnerLease, result: LearnerResult) -> None:
        """Commit a checked result, confirmed by `redundancy`; a repeat changes nothing."""
        verified = Verification(taken=True)

        def change(run: RunRecord) -> RunRecord:
            nonlocal verified
            learner = run.learners[lease.key.learner]
            if has_result(learner, result.blob, lease.worker_id, lease.epoch):
                return run
            holder = require_lease(run, lease)
            learners, last = run.config.learners, run.config.learners.num_steps
            curve = self._store.losses(run.run_id, learner.index)
            curve = curve.after(last, result.loss, num_steps=last)
            now = self._wall_clock()
            learner, verified = with_result(
                learner,
                result.changed(committed_at=now, losses=curve.losses, loss_steps=curve.steps),
                holder=holder,
                redundancy=learners.redundancy,
                max_attempts=learners.max_attempts,
            )
            return run.with_learner(learner)

        await self._store.update(lease.key.run_id, change)
        if verified.suspects:
            detail = "settled" if verified.taken else ""
            self._record(EventKind.LEARNER_DISPUTED, lease, verified.reason, detail=detail)
        name, what = (
            self.workers.name(lease.worker_id),
            "is in" if verified.taken else "is held back",
        )
        logger.info("learner %s of worker %s %s", lease.key, name, what)

    def check_commit(self, lease: LearnerLease, result: BlobName) -> tuple[RunRecord, bool]:
        """Refuse a stale commit before reading it; return the run, and whether it is a repeat."""
        run, learner = self._learner(lease.key)
        if has_result(learner, result, lease.worker_id, lease.epoch):
            return run, True
        require_lease(run, lease)
        return run, False

    async def fail(self, lease: LeaseId, failure: LearnerFailure) -> None:
        if isinstance(lease, RangeLease):
            self._take_range_back(lease, failure.cause, failed=True)
            return

        def failed(run: RunRecord, learner: LearnerRecord, holder: Holder) -> LearnerRecord:
            most = run.config.learners.max_attempts
            return after_failure(learner, failure, holder=holder, max_attempts=most)

        await self._take_back(lease, EventKind.LEARNER_FAILED, failure.cause, failed)

    async def give_back(self, lease: LeaseId, *, too_large: str = "") -> None:
        """Requeue a learner or range; after `too_large` the worker gets no more of its run."""
        # Of its own leases alone: what a worker has declined is kept.
        if too_large and self.leases.has(lease):
            self.workers.decline(lease.worker_id, lease.key.owner)
        if isinstance(lease, RangeLease):
            self._take_range_back(lease, too_large)
            return
        why, message = EventKind.LEARNER_RETURNED, "its worker gave it back"
        if too_large:
            why = EventKind.LEARNER_DECLINED
            message = f"worker {self.workers.name(lease.worker_id)} gave it back: {too_large}"
        with contextlib.suppress(StaleLeaseError):
            await self._take_back(
                lease, why, message, lambda _run, learner, _by: requeued(learner, message)
            )

    def _take_range_back(self, lease: RangeLease, reason: str, *, failed: bool = False) -> None:
        with contextlib.suppress(StaleLeaseError):
            grant, name = self.scans.require(lease), self.workers.name(lease.worker_id)
            if reason:
                logger.warning("worker %s gave %s back: %s", name, grant, reason)
            self.scans.give_back(lease, failed=failed)

    async def expire_leases(self) -> None:
        while True:
            # Expired together, so that they share transactions: a whole rack may be down.
            expired = self.leases.expired()
            await asyncio.gather(*map(self._expire, expired))
            if seconds := await self.leases.wait_until_due():
                # The whole process was paused, so no lease has expired.
                said = f"{seconds:.1f}"
                self._events.record(EventKind.PAUSED, level=logging.WARNING, seconds=said)

    async def _expire(self, lease: LeaseId) -> None:
        if isinstance(lease, RangeLease):
            self.scans.give_back(lease)
            return
        key, worker_id = lease.key, lease.worker_id
        name = self.workers.name(worker_id)
        reason = f"worker {name} was silent for {self.leases.duration_seconds:g} s"
        step = self._store.progress(key.run_id, key.learner).step
        end = SilentEnd(worker_id=worker_id, worker_name=name, step=step, at=self._wall_clock())
        try:
            run = await self._take_back(
                lease,
                EventKind.LEASE_EXPIRED,
                reason,
                lambda _run, learner, _by: requeued(learner, reason, end),
            )
        except StaleLeaseError:
            return  # committed at the last moment
        except LiptError as error:
            self._record(EventKind.RETRIED, lease, str(error), detail="lease expiry")
            self.leases.extend(key, _RETRY_SECONDS)
            return
        self._silent.add(worker_id)
        if account := policy.new_quarantine(run, key.learner, self._silent):
            self._record(EventKind.LEARNER_QUARANTINED, lease, account)

    async def _take_back(
        self,
        lease: LearnerLease,
        why: EventKind,
        reason: str,
        change: Callable[[RunRecord, LearnerRecord, Holder], LearnerRecord],
    ) -> RunRecord:
        """Change and report a learner, if the worker still holds its lease at the write."""

        def checked(run: RunRecord) -> RunRecord:
            holder = require_lease(run, lease)
            return run.with_learner(change(run, run.learners[lease.key.learner], holder))

        run = await self._store.update(lease.key.run_id, checked)
        self._record(why, lease, reason)
        return run

    def _learner(self, key: LearnerAssignment) -> RunLearner:
        run = self._store.find(key.run_id)
        if not 0 <= key.learner < len(run.learners):
            raise InvalidRequestError(
                f"run {run.run_id} has learners 0..{len(run.learners) - 1}, not {key.learner}."
            )
        return RunLearner(run, run.learners[key.learner])

    def _record(
        self, kind: EventKind, lease: LearnerLease, reason: str, *, detail: str = ""
    ) -> None:
        key, worker_id = lease.key, lease.worker_id
        with logging_about(run=key.run_id, assignment=key, learner=key.learner, worker=worker_id):
            self._events.record(
                kind,
                detail=detail,
                level=logging.WARNING,
                run=self._store.find(key.run_id).name,
                learner=key.learner,
                worker=self.workers.name(worker_id),
                reason=reason,
            )
