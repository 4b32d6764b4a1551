"""Dispatcher: hands learners to workers under leases, and takes their results.

A worker that stays silent for longer than its lease loses the learner to another,
and a commit under an older epoch is refused. A learner that seems to end its workers
lets all others go first: see `lipt.coordinator.dispatch.quarantine`. After a restart
every learner that was out gets a fresh lease, so that its worker can finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import InvalidRequestError, LiptError, StaleLeaseError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import Meters
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.choosing import waits, why_idle, why_waiting
from lipt.coordinator.dispatch.demand import DemandWatch
from lipt.coordinator.dispatch.handing_out import HandingOut, Journal
from lipt.coordinator.dispatch.leases import Lease, LeaseTable, require_lease
from lipt.coordinator.dispatch.quarantine import (
    MAX_SILENT_ENDS,
    account_of,
    furthest_step,
    quarantined,
)
from lipt.coordinator.dispatch.redundancy import Judgement, Verdict, handed_in
from lipt.coordinator.dispatch.scans import Scans
from lipt.coordinator.dispatch.workers import WorkerRecord, WorkerRegistry
from lipt.coordinator.runs.store import LearnerProgress, RunStore
from lipt.coordinator.runs.transitions import (
    LearnerResult,
    after_failure,
    is_in,
    requeued,
    without_silent_ends,
)
from lipt.coordinator.state.records import LearnerRecord, RunRecord, SilentEnd

logger = logging.getLogger(__name__)

# When a lease's end could not be written (the disk is full, say).
_RETRY_SECONDS = 1.0


class Dispatcher:
    """Matches the learners of all runs with the workers that ask."""

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
        """Dispatch the learners of `store`.

        Args:
            store: the runs.
            lease_seconds: how long a worker may be silent.
            clock: monotonic seconds, for leases.
            wall_clock: seconds since 1970, for when training began; deadlines are
                counted on the same clock.
            events: where expiries and reassignments are counted.
            meters: where examples that workers score are counted.
        """
        self._store = store
        self._wall_clock = wall_clock
        self.workers = WorkerRegistry(clock)
        self.leases = LeaseTable(lease_seconds, clock)
        self.scans = Scans(lease_seconds, clock, meters)
        self.demand = DemandWatch(store, self.scans)
        self._journal = Journal(events or Events(), store, self.workers)
        # Workers that fell silent; one that is heard again was not ended by its learner.
        self._silent: set[str] = set()
        store.listen_to_learners(self.leases.follow)
        self._handing_out = HandingOut(
            store, self.workers, self._journal, alive=self.alive, wall_clock=wall_clock
        )

    def restore(self) -> None:
        """Renew the leases of learners that were out when the process ended."""
        for run in self._store.live():
            self.leases.follow(run, run.learners)
            for learner in run.learners:
                self._silent.update(end.worker_id for end in learner.silent_ends)

    def alive(self) -> tuple[WorkerRecord, ...]:
        """The workers that are there now."""
        return self.workers.alive(self.leases.holders() | self._handing_out.waiting())

    def num_waiting(self) -> int:
        """How many workers wait for a learner at this moment."""
        return len(self._handing_out.waiting())

    def seconds_since_heard(self, worker: WorkerRecord) -> float:
        """How long a worker has been silent; one that waits for work is not."""
        waiting = worker.worker_id in self._handing_out.waiting()
        return 0.0 if waiting else self.workers.seconds_since_heard(worker)

    def held_by(self, worker_id: str) -> tuple[RunRecord, LearnerRecord] | None:
        """The learner that a worker has the lease of, with its run."""
        key = self.leases.held_by(worker_id)
        return None if key is None else self._learner(key)

    def why_idle(self, worker: WorkerRecord) -> str:
        """What keeps a worker from learners that wait; empty where it has one."""
        worker_id = worker.worker_id
        held = self.leases.held_by(worker_id) or self.scans.held_by(worker_id)
        return "" if held else why_idle(worker, self._store.live())

    def why_waiting(self, run: RunRecord) -> str:
        """What a run's learners wait for that no worker there can give."""
        # Of most runs none waits, and there may be thousands of workers to look at.
        if not waits(run):
            return ""
        return why_waiting(run, alive=self.alive(), busy=self.leases.holders())

    async def acquire(
        self, worker_id: str, *, wait_seconds: float
    ) -> tuple[RunRecord, LearnerRecord] | None:
        """The worker's next learner under a new lease, or None when there was none in time.

        Nor is there any where this worker is yet to be told what keeps it from learners.

        Raises:
            UnknownWorkerError: it has not registered with this process.
        """
        worker = self.workers.heard(worker_id)
        if worker_id in self._silent:
            await self._forgive(worker_id)
        held = self.held_by(worker_id)
        if held is not None:
            return held
        return await self._handing_out.next_for(worker, wait_seconds=wait_seconds)

    def heartbeat(
        self, worker_id: str, key: AssignmentKey, epoch: int, progress: LearnerProgress
    ) -> bool:
        """Keep a lease, and note how far the learner is.

        Returns:
            Whether the worker should drop it, because the run no longer needs it.

        Raises:
            StaleLeaseError: the learner is somebody else's by now.
        """
        if self.workers.knows(worker_id):
            self.workers.heard(worker_id)
        run, learner = self._learner(key)
        if run.state.ended or learner.state is LearnerState.DROPPED:
            return True
        require_lease(run, key, worker_id, epoch)
        self.leases.renew(key, worker_id, epoch)
        self._store.set_progress(run.run_id, learner.index, progress)
        return False

    async def commit(
        self, worker_id: str, key: AssignmentKey, epoch: int, result: LearnerResult
    ) -> None:
        """Take a checked result, or hold it back until another worker hands in the same.

        Committing the same one again changes nothing.

        Raises:
            StaleLeaseError: the lease is over, or the run has closed.
        """
        judged = Judgement(Verdict.TAKE)

        def change(run: RunRecord) -> RunRecord:
            nonlocal judged
            learner = run.learners[key.learner]
            if is_in(learner, result.blob, worker_id, epoch):
                return run
            require_lease(run, key, worker_id, epoch)
            learners = run.config.learners
            learner, judged = handed_in(
                learner,
                result,
                redundancy=learners.redundancy,
                max_attempts=learners.max_attempts,
            )
            if judged.verdict is Verdict.TAKE:
                learner = learner.changed(committed_at=self._wall_clock())
            return run.with_learner(learner)

        await self._store.update(key.run_id, change)
        name = self.workers.name(worker_id)
        if judged.suspects:
            self._journal.record(
                EventKind.LEARNER_DISPUTED,
                key,
                worker_id,
                judged.reason,
                detail="settled" if judged.verdict is Verdict.TAKE else "",
            )
        what = "is in" if judged.verdict is Verdict.TAKE else "is held back"
        logger.info("learner %s of worker %s %s", key, name, what)

    def check_commit(
        self, worker_id: str, key: AssignmentKey, epoch: int, result: BlobName
    ) -> tuple[RunRecord, bool]:
        """Whether a commit would be taken, before its content is read.

        Returns:
            The run, and whether this very result is in already.

        Raises:
            StaleLeaseError: the lease is over, or the run has closed.
        """
        run, learner = self._learner(key)
        if is_in(learner, result, worker_id, epoch):
            return run, True
        require_lease(run, key, worker_id, epoch)
        return run, False

    async def fail(self, worker_id: str, key: AssignmentKey, epoch: int, reason: str) -> None:
        """Count an attempt against the learner, and queue it for another worker.

        Raises:
            StaleLeaseError: the learner is somebody else's by now.
        """

        def change(run: RunRecord) -> RunRecord:
            require_lease(run, key, worker_id, epoch)
            return run.with_learner(
                after_failure(
                    run.learners[key.learner],
                    worker_id=worker_id,
                    reason=reason,
                    max_attempts=run.config.learners.max_attempts,
                )
            )

        await self._store.update(key.run_id, change)
        self._journal.record(EventKind.LEARNER_FAILED, key, worker_id, reason)

    async def release(self, worker_id: str, key: AssignmentKey, epoch: int) -> None:
        """Queue a learner again that its worker gives back undone; a stale call is harmless."""
        reason = "its worker gave it back"
        with contextlib.suppress(StaleLeaseError):
            await self._requeue(key, epoch, worker_id, EventKind.LEARNER_RETURNED, reason)

    async def decline(self, worker_id: str, key: AssignmentKey, epoch: int, reason: str) -> None:
        """Queue a learner again that is too much for its worker, which gets none of its run.

        A stale call is harmless.
        """
        self.workers.decline(worker_id, key.run_id)
        message = f"worker {self.workers.name(worker_id)} gave it back: {reason}"
        with contextlib.suppress(StaleLeaseError):
            await self._requeue(key, epoch, worker_id, EventKind.LEARNER_DECLINED, message)

    async def expire_leases(self) -> None:
        """Take the learners back whose workers have gone silent; runs until cancelled."""
        while True:
            # Together, so that they share their transactions: a whole rack may have gone.
            expired = self.leases.expired()
            await asyncio.gather(*(self._expire(key, lease) for key, lease in expired))
            if seconds := await self.leases.wait_until_due():
                self._journal.paused(seconds)

    async def _expire(self, key: AssignmentKey, lease: Lease) -> None:
        name = self.workers.name(lease.worker_id)
        reason = f"worker {name} was silent for {self.leases.duration_seconds:g} s"
        step = self._store.progress(key.run_id, key.learner).step
        end = SilentEnd(
            worker_id=lease.worker_id, worker_name=name, step=step, at=self._wall_clock()
        )
        try:
            await self._requeue(
                key, lease.epoch, lease.worker_id, EventKind.LEASE_EXPIRED, reason, end
            )
        except StaleLeaseError:
            pass  # it came in at the last moment
        except LiptError as error:
            self._journal.record(
                EventKind.RETRIED, key, lease.worker_id, str(error), detail="lease expiry"
            )
            self.leases.extend(key, _RETRY_SECONDS)

    async def _requeue(
        self,
        key: AssignmentKey,
        epoch: int,
        worker_id: str,
        why: EventKind,
        reason: str,
        silent_end: SilentEnd | None = None,
    ) -> None:
        def change(run: RunRecord) -> RunRecord:
            require_lease(run, key, worker_id, epoch)
            return run.with_learner(requeued(run.learners[key.learner], reason, silent_end))

        run = await self._store.update(key.run_id, change)
        self._journal.record(why, key, worker_id, reason)
        if silent_end is not None:
            self._silent.add(worker_id)
            against = quarantined(run, furthest=self._furthest(run)).get(key.learner, ())
            if len(against) == MAX_SILENT_ENDS:
                account = account_of(run, furthest=self._furthest(run))
                self._journal.record(EventKind.LEARNER_QUARANTINED, key, worker_id, account)

    async def _forgive(self, worker_id: str) -> None:
        for run in self._store.live():
            if run.state is RunState.TRAINING:
                await self._store.update(
                    run.run_id, lambda now: without_silent_ends(now, worker_id)
                )
        self._silent.discard(worker_id)

    def _furthest(self, run: RunRecord) -> int:
        return furthest_step(run, self._store)

    def _learner(self, key: AssignmentKey) -> tuple[RunRecord, LearnerRecord]:
        run = self._store.find(key.run_id)
        if not 0 <= key.learner < len(run.learners):
            raise InvalidRequestError(
                f"run {run.run_id} has learners 0..{len(run.learners) - 1}, not {key.learner}."
            )
        return run, run.learners[key.learner]
