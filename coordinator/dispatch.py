"""Hands learners to workers under leases, and takes their results.

A lease is a promise with an end: a worker that stays silent for longer loses
it, and a commit under an older epoch is refused. Leases live in memory; after
a restart every learner that was out gets a fresh one, so its worker can finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from lipt.common.blobs.name import BlobName
from lipt.common.errors import (
    InvalidRequestError,
    LiptError,
    StaleLeaseError,
)
from lipt.coordinator.records import LearnerRecord, LearnerState, RunRecord, RunState
from lipt.coordinator.run_book import LearnerProgress, RunBook
from lipt.coordinator.scheduling import (
    LearnerKey,
    WorkerRecord,
    after_failure,
    choose_learner,
    requeued,
)
from lipt.coordinator.worker_registry import WorkerRegistry

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lease:
    """Who trains a learner, and until when it has to be heard from (monotonic seconds)."""

    worker_id: str
    epoch: int
    expires_at: float


@dataclass(frozen=True)
class LearnerResult:
    """What a worker hands in."""

    blob: BlobName
    loss: float
    train_seconds: float
    bytes_received: int


class Dispatcher:
    """The leases of one coordinator."""

    def __init__(
        self,
        book: RunBook,
        *,
        lease_seconds: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._book = book
        self.lease_seconds = lease_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self.workers = WorkerRegistry(clock)
        self._leases: dict[LearnerKey, Lease] = {}
        self._waiting: dict[str, asyncio.Future[LearnerKey]] = {}
        self._reserved: set[LearnerKey] = set()
        self._lease_added = asyncio.Event()
        book.listen(self._on_change)

    def restore(self) -> None:
        """Renew the leases of learners that were out when the process ended."""
        for run in self._book.runs():
            for learner in run.learners:
                if run.state is RunState.TRAINING and learner.state is LearnerState.LEASED:
                    self._set_lease((run.run_id, learner.index), learner)

    def alive(self) -> tuple[WorkerRecord, ...]:
        """The workers that are there now."""
        busy = {lease.worker_id for lease in self._leases.values()}
        return self.workers.alive(busy | self._waiting.keys())

    def seconds_since_heard(self, worker: WorkerRecord) -> float:
        """How long a worker has been silent; one that waits for work is not."""
        waiting = worker.worker_id in self._waiting
        return 0.0 if waiting else self.workers.seconds_since_heard(worker)

    def held_by(self, worker_id: str) -> LearnerKey | None:
        """The learner that a worker has the lease of."""
        return next(
            (key for key, lease in self._leases.items() if lease.worker_id == worker_id), None
        )

    async def acquire(
        self, worker_id: str, *, wait_seconds: float
    ) -> tuple[RunRecord, LearnerRecord] | None:
        """The worker's next learner under a new lease, or None when there was none in time.

        Raises:
            UnknownWorkerError: it has not registered with this process.
        """
        self.workers.heard(worker_id)
        held = self.held_by(worker_id)
        if held is not None:
            return self._learner(held)
        earlier = self._waiting.pop(worker_id, None)
        if earlier is not None:
            earlier.cancel()
        turn: asyncio.Future[LearnerKey] = asyncio.get_running_loop().create_future()
        self._waiting[worker_id] = turn
        self._match()
        try:
            await asyncio.wait({turn}, timeout=wait_seconds)
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._reserved.discard(turn.result())
            raise
        finally:
            if self._waiting.get(worker_id) is turn:
                del self._waiting[worker_id]
        if not turn.done() or turn.cancelled():
            self.workers.heard(worker_id)
            return None
        key = turn.result()
        try:
            return await self._grant(key, self.workers.heard(worker_id))
        finally:
            self._reserved.discard(key)

    def heartbeat(
        self, worker_id: str, key: LearnerKey, epoch: int, progress: LearnerProgress
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
        lease = self._valid(key, worker_id, epoch)
        self._leases[key] = replace(lease, expires_at=self._clock() + self.lease_seconds)
        self._book.set_progress(run.run_id, learner.index, progress)
        return False

    async def commit(
        self, worker_id: str, key: LearnerKey, epoch: int, result: LearnerResult
    ) -> None:
        """Take a checked result; committing the same one again changes nothing.

        Raises:
            StaleLeaseError: the lease is over, or the run has closed.
        """

        def change(run: RunRecord) -> RunRecord:
            learner = run.learners[key[1]]
            if _already(learner, worker_id, epoch, result):
                return run
            self._valid(key, worker_id, epoch)
            return run.with_learner(
                learner.changed(
                    state=LearnerState.DONE,
                    result=result.blob,
                    loss=result.loss,
                    train_seconds=result.train_seconds,
                    bytes_received=result.bytes_received,
                    message="",
                )
            )

        await self._book.update(key[0], change)
        self._leases.pop(key, None)
        logger.info("learner %s/%d of worker %s is in", *key, self.workers.name(worker_id))

    def check_commit(
        self, worker_id: str, key: LearnerKey, epoch: int, result: BlobName
    ) -> tuple[RunRecord, bool]:
        """Whether a commit would be taken, before its content is read.

        Returns:
            The run, and whether this very result is in already.

        Raises:
            StaleLeaseError: the lease is over, or the run has closed.
        """
        run, learner = self._learner(key)
        if _already(learner, worker_id, epoch, LearnerResult(result, 0.0, 0.0, 0)):
            return run, True
        self._valid(key, worker_id, epoch)
        return run, False

    async def fail(self, worker_id: str, key: LearnerKey, epoch: int, reason: str) -> None:
        """Count an attempt against the learner, and queue it for another worker.

        Raises:
            StaleLeaseError: the learner is somebody else's by now.
        """

        def change(run: RunRecord) -> RunRecord:
            self._valid(key, worker_id, epoch)
            return run.with_learner(
                after_failure(
                    run.learners[key[1]],
                    worker_id=worker_id,
                    reason=reason,
                    max_attempts=run.config.learners.max_attempts,
                )
            )

        await self._book.update(key[0], change)
        self._leases.pop(key, None)
        logger.warning("learner %s/%d failed on %s: %s", *key, self.workers.name(worker_id), reason)
        self._match()

    async def release(self, worker_id: str, key: LearnerKey, epoch: int) -> None:
        """Queue a learner again that its worker gives back undone; a stale call is harmless."""
        with contextlib.suppress(StaleLeaseError):
            await self._requeue(key, epoch, worker_id, "its worker gave it back")

    async def expire_leases(self) -> None:
        """Take the learners back whose workers have gone silent; runs until cancelled."""
        while True:
            now = self._clock()
            for key, lease in tuple(self._leases.items()):
                if lease.expires_at <= now:
                    await self._expire(key, lease)
            next_end = min((lease.expires_at for lease in self._leases.values()), default=None)
            self._lease_added.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    None if next_end is None else max(0.0, next_end - self._clock())
                ):
                    await self._lease_added.wait()

    async def _expire(self, key: LearnerKey, lease: Lease) -> None:
        name = self.workers.name(lease.worker_id)
        reason = f"worker {name} was silent for {self.lease_seconds:g} s"
        try:
            await self._requeue(key, lease.epoch, lease.worker_id, reason)
        except StaleLeaseError:
            self._leases.pop(key, None)
        except LiptError as error:  # the disk is full, say: try again, keep serving
            logger.warning("lease of %s/%d: %s", *key, error)
            self._leases[key] = replace(lease, expires_at=self._clock() + 1.0)
        else:
            logger.warning("lease of learner %s/%d expired: %s", *key, reason)

    async def _requeue(self, key: LearnerKey, epoch: int, worker_id: str, reason: str) -> None:
        def change(run: RunRecord) -> RunRecord:
            self._valid(key, worker_id, epoch)
            return run.with_learner(requeued(run.learners[key[1]], reason))

        await self._book.update(key[0], change)
        self._leases.pop(key, None)
        self._match()

    async def _grant(
        self, key: LearnerKey, worker: WorkerRecord
    ) -> tuple[RunRecord, LearnerRecord] | None:
        def change(run: RunRecord) -> RunRecord:
            learner = run.learners[key[1]]
            if run.state is not RunState.TRAINING or learner.state is not LearnerState.QUEUED:
                return run
            started = run.training_started_at or self._wall_clock()
            leased = learner.changed(
                state=LearnerState.LEASED,
                epoch=learner.epoch + 1,
                worker_id=worker.worker_id,
                worker_name=worker.name,
                device=worker.device,
            )
            return run.changed(training_started_at=started).with_learner(leased)

        run = await self._book.update(key[0], change)
        learner = run.learners[key[1]]
        if learner.state is not LearnerState.LEASED or learner.worker_id != worker.worker_id:
            return None
        self._set_lease(key, learner)
        return run, learner

    def _match(self) -> None:
        """Give waiting workers, in the order of their asking, what there is to do."""
        if not self._waiting or not self._has_queued():
            return
        present = {worker.worker_id: worker for worker in self.alive()}
        for worker_id, turn in tuple(self._waiting.items()):
            worker = present[worker_id]
            key = choose_learner(
                worker,
                self._book.runs(),
                others=[other for other in present.values() if other.worker_id != worker_id],
                reserved=self._reserved,
            )
            if key is not None:
                del self._waiting[worker_id]
                if not turn.done():
                    self._reserved.add(key)
                    turn.set_result(key)

    def _has_queued(self) -> bool:
        return any(
            learner.state is LearnerState.QUEUED
            for run in self._book.runs()
            if run.state is RunState.TRAINING
            for learner in run.learners
        )

    def _on_change(self, run: RunRecord) -> None:
        if run.state is not RunState.TRAINING:
            for key in [key for key in self._leases if key[0] == run.run_id]:
                del self._leases[key]
        else:
            self._match()

    def _set_lease(self, key: LearnerKey, learner: LearnerRecord) -> None:
        self._leases[key] = Lease(
            learner.worker_id, learner.epoch, self._clock() + self.lease_seconds
        )
        self._lease_added.set()

    def _valid(self, key: LearnerKey, worker_id: str, epoch: int) -> Lease:
        lease = self._leases.get(key)
        if lease is None or lease.worker_id != worker_id or lease.epoch != epoch:
            now = f"its epoch is {lease.epoch}" if lease else "nobody holds it now"
            raise StaleLeaseError(
                f"learner {key[0]}/{key[1]}: the lease with epoch {epoch} is over ({now}); "
                "the result is not used. Ask for the next assignment."
            )
        return lease

    def _learner(self, key: LearnerKey) -> tuple[RunRecord, LearnerRecord]:
        run = self._book.find(key[0])
        if not 0 <= key[1] < len(run.learners):
            raise InvalidRequestError(
                f"run {run.run_id} has learners 0..{len(run.learners) - 1}, not {key[1]}."
            )
        return run, run.learners[key[1]]


def _already(learner: LearnerRecord, worker_id: str, epoch: int, result: LearnerResult) -> bool:
    return learner.state is LearnerState.DONE and (
        learner.worker_id,
        learner.epoch,
        learner.result,
    ) == (worker_id, epoch, result.blob)


def parse_assignment_id(text: str) -> LearnerKey:
    """The run and learner of an assignment id, "RUN/INDEX".

    Raises:
        InvalidRequestError: it has another form.
    """
    run_id, separator, index = text.rpartition("/")
    if not separator or not run_id or not index.isdecimal():
        raise InvalidRequestError(f"assignment id {text!r} is not RUN/INDEX.")
    return run_id, int(index)
