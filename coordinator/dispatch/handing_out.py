"""Handing out: workers that wait are given learners; who has waited longest goes first.

Matching, once for all changes in a turn of the loop, reserves a learner for a worker that waits.
Then a lease is written, even if the worker's call was cut meanwhile: the worker has the learner,
and is told of it when it asks again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import cache

from lipt.common.observability.logs import EventKind, Events, logging_about
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch.choosing import Offers, Waiting, choose_learner, openings, why_idle
from lipt.coordinator.dispatch.leases import AssignmentKey, LeaseTable
from lipt.coordinator.dispatch.quarantine import furthest_step, held_back
from lipt.coordinator.dispatch.workers import WorkerRecord, WorkerRegistry
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.runs.transitions import leased
from lipt.coordinator.state.records import LearnerRecord, RunRecord

logger = logging.getLogger(__name__)


class WorkerQueue:
    """Long polls in the order in which their workers began to ask.

    A worker whose poll ends without a learner keeps its place for the next one.
    """

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Future[AssignmentKey]] = {}
        self._places: dict[str, int] = {}
        self._next_place = itertools.count()

    def worker_ids(self) -> AbstractSet[str]:
        """The workers that wait."""
        return self._turns.keys()

    def in_order(self) -> list[str]:
        """The workers that wait, the next to be served first."""
        return sorted(self._turns, key=self._places.__getitem__)

    def join(self, worker_id: str) -> asyncio.Future[AssignmentKey]:
        """A future that is done when the worker is served; an earlier poll's is cancelled."""
        earlier = self._turns.pop(worker_id, None)
        if earlier is not None:
            earlier.cancel()
        if worker_id not in self._places:
            self._places[worker_id] = next(self._next_place)
        turn: asyncio.Future[AssignmentKey] = asyncio.get_running_loop().create_future()
        self._turns[worker_id] = turn
        return turn

    def leave(self, worker_id: str, turn: asyncio.Future[AssignmentKey]) -> None:
        """End a poll; harmless where the worker was served, or has asked again."""
        if self._turns.get(worker_id) is turn:
            del self._turns[worker_id]

    def serve(self, worker_id: str, key: AssignmentKey) -> bool:
        """Give a waiting worker a learner; False where its poll has just been cancelled."""
        turn = self._turns.pop(worker_id)
        if turn.done():
            return False
        del self._places[worker_id]
        turn.set_result(key)
        return True


class Journal:
    """Counts and logs events of learners and their workers, by name."""

    def __init__(self, events: Events, store: RunStore, workers: WorkerRegistry) -> None:
        self._events, self._store, self._workers = events, store, workers

    def record(
        self, kind: EventKind, key: AssignmentKey, worker_id: str, reason: str, *, detail: str = ""
    ) -> None:
        """Record an event of a learner at a worker, as a warning; `detail` as `Events` has it."""
        about = {"run": key.run_id, "assignment": key, "learner": key.learner, "worker": worker_id}
        with logging_about(**about):
            self._events.record(
                kind,
                detail=detail,
                level=logging.WARNING,
                run=self._store.find(key.run_id).name,
                learner=key.learner,
                worker=self._workers.name(worker_id),
                reason=reason,
            )

    def paused(self, seconds: float) -> None:
        """Record that the whole process was stopped, so that no lease ended."""
        self._events.record(EventKind.PAUSED, level=logging.WARNING, seconds=f"{seconds:.1f}")


class HandingOut:
    """Matches the queued learners of all runs with the workers that wait."""

    def __init__(
        self,
        store: RunStore,
        workers: WorkerRegistry,
        leases: LeaseTable,
        journal: Journal,
        *,
        alive: Callable[[], tuple[WorkerRecord, ...]],
        wall_clock: Callable[[], float],
    ) -> None:
        """Hand out the learners of `store`.

        Args:
            store: the runs.
            workers: the registered workers.
            leases: knows which learners wait.
            journal: records reassignments.
            alive: gives the present workers.
            wall_clock: seconds since 1970, for deadlines.
        """
        self._store = store
        self._workers = workers
        self._leases = leases
        self._journal = journal
        self._alive = alive
        self._wall_clock = wall_clock
        self._queue = WorkerQueue()
        # Learners that are being handed out, and the tasks that do it by worker.
        self._reserved: set[AssignmentKey] = set()
        self._granting: dict[str, asyncio.Task[tuple[RunRecord, LearnerRecord] | None]] = {}
        self._is_to_match = False
        store.listen(self._on_change)

    def waiting(self) -> AbstractSet[str]:
        """The workers that wait for a learner."""
        return self._queue.worker_ids()

    def waiting_learners(self) -> list[Waiting]:
        """The learners that wait for a worker, of all runs, oldest first."""
        found = (Waiting(run, self._leases.queued(run.run_id)) for run in self._store.live())
        return [waiting for waiting in found if waiting.indices]

    async def next_for(
        self, worker: WorkerRecord, *, wait_seconds: float
    ) -> tuple[RunRecord, LearnerRecord] | None:
        """The worker's next learner under a new lease, or None when there was none in time.

        None also comes at once where this worker is to be told why it is idle.
        """
        worker_id = worker.worker_id
        if worker_id in self._granting:  # to an earlier call, which was cut
            return await asyncio.shield(self._granting[worker_id])
        turn = self._queue.join(worker_id)
        self._match_soon()
        try:
            if not self._has_news(worker):
                await asyncio.wait({turn}, timeout=wait_seconds)
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._reserved.discard(turn.result())
                self._match_soon()
            raise
        finally:
            self._queue.leave(worker_id, turn)
        if not turn.done() or turn.cancelled():
            self._workers.heard(worker_id)
            return None
        granting = asyncio.create_task(self._grant(turn.result(), worker_id))
        self._granting[worker_id] = granting
        return await asyncio.shield(granting)

    async def _grant(
        self, key: AssignmentKey, worker_id: str
    ) -> tuple[RunRecord, LearnerRecord] | None:
        try:
            return await self._lease(key, self._workers.heard(worker_id))
        finally:
            self._reserved.discard(key)
            self._granting.pop(worker_id, None)

    async def _lease(
        self, key: AssignmentKey, worker: WorkerRecord
    ) -> tuple[RunRecord, LearnerRecord] | None:
        def change(run: RunRecord) -> RunRecord:
            learner = run.learners[key.learner]
            queued = run.state is RunState.TRAINING and learner.state is LearnerState.QUEUED
            if not queued or self._store.held(run.run_id):
                return run
            started = run.training_started_at or self._wall_clock()
            granted = leased(
                learner,
                worker_id=worker.worker_id,
                worker_name=worker.name,
                device=worker.device,
                party=worker.party,
                kind=worker.kind,
                at=self._wall_clock(),
            )
            return run.changed(training_started_at=started).with_learner(granted)

        run = await self._store.update(key.run_id, change)
        learner = run.learners[key.learner]
        if learner.state is not LearnerState.LEASED or learner.worker_id != worker.worker_id:
            return None
        # With copies it is redundancy, and no sign of trouble.
        if learner.epoch > 1 and not learner.copies:
            self._journal.record(
                EventKind.LEARNER_REASSIGNED, key, learner.worker_id, learner.message
            )
        return run, learner

    def _has_news(self, worker: WorkerRecord) -> bool:
        """Whether a worker is to be told at once why it is idle; the log is told too."""
        reason = why_idle(worker, self.waiting_learners())
        news = self._workers.note_idle(worker.worker_id, reason)
        if news:
            logger.warning("worker %s is idle: it %s", worker.name, reason)
        return news

    def _on_change(self, run: RunRecord) -> None:
        if run.state is RunState.TRAINING:
            self._match_soon()

    def _match_soon(self) -> None:
        """Match once, however much changes in this turn of the loop."""
        if not self._is_to_match:
            self._is_to_match = True
            asyncio.get_running_loop().call_soon(self._match)

    def _match(self) -> None:
        self._is_to_match = False
        if not self._queue.worker_ids():
            return
        # Learners of held runs stay; those that are out may come in.
        waiting = [it for it in self.waiting_learners() if not self._store.held(it.run.run_id)]
        back = held_back(
            [it.run for it in waiting if self._leases.has_silent_ends(it.run.run_id)],
            furthest=lambda run: furthest_step(run, self._store),
            now=self._wall_clock(),
            reserved=self._reserved,
        )
        offers = Offers(openings(waiting, self._reserved.copy(), back))
        alive = cache(self._alive)
        for worker_id in self._queue.in_order():
            # Asking all of a thousand workers after each grant would hold everything up.
            if not offers:
                return
            worker = self._workers.find(worker_id)
            if worker is None:  # so many have registered since that it was forgotten
                continue
            chosen = choose_learner(worker, offers, alive=alive)
            if chosen is not None and self._queue.serve(worker_id, chosen.key):
                self._reserved.add(chosen.key)
                offers.take(chosen)
