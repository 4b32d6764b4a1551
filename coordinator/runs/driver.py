"""Run driver: one task per run takes it from stage to stage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TypeVar

from lipt.common.backoff import Backoff
from lipt.common.errors import LiptError, RunFailedError, StateError
from lipt.common.observability.logs import EventKind, Events, log_about, logging_about
from lipt.common.observability.tracing import attached, span
from lipt.common.states import RunState
from lipt.coordinator.compute.jobs.pretraining import (
    CutShards,
    DamagedLearners,
    InitializeWeights,
    MakeSoup,
    Offered,
)
from lipt.coordinator.compute.messages import Asked, Job, OnData, Timed, Took
from lipt.coordinator.compute.progress import Made, OnProgress, Progressed
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.runs.holding import Holding
from lipt.coordinator.runs.store import Activity, RunStore
from lipt.coordinator.runs.transitions import (
    DAMAGED,
    Closing,
    decide_closing,
    with_deadline_running,
    without_deadline,
    without_open_learners,
    without_results,
)
from lipt.coordinator.state.records import RunRecord

# Disk retry: a run waits for a disk that refuses (full, read-only), in growing pauses.

ResultT = TypeVar("ResultT")

_BACKOFF = Backoff(first_seconds=1.0, max_seconds=30.0)


class DiskRetry:
    """Does what a run needs as soon as the disk lets it: it waits, and is not lost."""

    def __init__(
        self, store: RunStore, events: Events, sleep: Callable[[float], Awaitable[object]]
    ) -> None:
        self._store = store
        self._events = events
        self._sleep = sleep

    async def __call__(
        self, run_id: str, action: Callable[[], Awaitable[ResultT]], *, stage: str
    ) -> ResultT:
        """What `action` gives; until then the run shows what it waits for.

        Args:
            run_id: whose action it is.
            action: called again after every `StateError`; what else it raises is raised.
            stage: which kind of action, for the counter of retries.
        """
        num_failures = 0
        while True:
            try:
                return await action()
            except StateError as error:
                num_failures += 1
                pause = _BACKOFF.pause_seconds(num_failures)
                self._events.record(
                    EventKind.RETRIED,
                    detail=stage,
                    level=logging.WARNING,
                    run=self._store.find(run_id).name,
                    after_seconds=pause,
                    reason=str(error),
                )
                self._store.set_activity(run_id, Activity(f"waiting for the disk: {error}"))
                await self._sleep(pause)


# Upkeep: what learners are made from is made again beside the run, whose deadline goes on.

logger = logging.getLogger(__name__)

# Makes theta* and shards again that are not whole.
Restore = Callable[[RunRecord, OnProgress], Awaitable[None]]


class Upkeep:
    """One task at most per run that is looked after."""

    def __init__(self, restore: Restore, holding: Holding) -> None:
        self._restore = restore
        self._holding = holding
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def look_after(self, run: RunRecord, report: OnProgress) -> None:
        """Restore a run's inputs where they are not whole; harmless where that is under way."""
        if run.run_id in self._tasks:
            return
        task = asyncio.create_task(self._look(run, report), name=f"restoring for run {run.run_id}")
        self._tasks[run.run_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(run.run_id, None))

    def give_up(self, run_id: str) -> None:
        """Leave what belongs to a run as it is."""
        if run_id in self._tasks:
            self._tasks[run_id].cancel()

    async def stop(self) -> None:
        """Leave everything as it is."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, run: RunRecord, report: OnProgress) -> None:
        try:
            await self._holding(run.run_id, lambda: self._restore(run, report))
        except LiptError as error:
            logger.error("run %s: %s", run.name, error)  # noqa: TRY400 - said in full


# Run driver: one task per run carries it from its request to its soup.
#
# A run's state says which stage comes next; a stage's result and the next state
# are written in one transaction. So a coordinator that was killed goes on with
# the stage it was in, and nothing that was finished is done again.

# What the stages are called in traces.
_SPANS = {
    RunState.INITIALIZING: "initialize weights",
    RunState.SHARDING: "cut shards",
    RunState.TRAINING: "train learners",
    RunState.MERGING: "merge learners",
}


class RunDriver:
    """One task per run that has not ended."""

    def __init__(
        self,
        store: RunStore,
        compute: ComputeQueue,
        *,
        restore: Restore,
        wall_clock: Callable[[], float],
        deadline_clock: Callable[[], float] | None = None,
        events: Events | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Drive the runs of `store`.

        Args:
            store: the runs.
            compute: where the stages are computed.
            restore: makes again what learners are made from, where it is damaged.
            wall_clock: seconds since 1970, for when a run ended.
            deadline_clock: the clock of `training_started_at`; the wall clock's where
                it is not given.
            events: where retries and ends are counted.
            sleep: waits so many seconds.
        """
        self._store = store
        self._compute = compute
        self._restore = restore
        self._wall_clock = wall_clock
        self._deadline_clock = deadline_clock or wall_clock
        self._events = events or Events()
        self._retrying = DiskRetry(store, self._events, sleep)
        self._holding = Holding(store, self._events, sleep)
        self._upkeep = Upkeep(restore, self._holding)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        store.listen(self._on_change)

    def start(self, run_id: str) -> None:
        """Begin, or go on with, a run."""
        task = asyncio.create_task(self._drive(run_id), name=f"run {run_id}")
        self._tasks[run_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(run_id, None))

    def resume_all(self) -> None:
        """Go on with every run that an earlier process left unfinished."""
        for run in self._store.live():
            # One that is held waits in its task.
            self.start(run.run_id)
            if not self._store.held(run.run_id):
                with logging_about(run=run.run_id), attached(run.traceparent):
                    logger.info("run %s goes on from %s", run.name, run.state)
                    self._upkeep.look_after(run, self._report(run.run_id))

    async def cancel(self, run_id: str) -> RunRecord:
        """End a run now, with what is computed for it; one that has ended stays as it is."""
        log_about(run=run_id)

        def change(run: RunRecord) -> RunRecord:
            return run if run.state.ended else self._ended(run, RunState.CANCELLED, "cancelled")

        run = await self._store.update(run_id, change)
        if run_id in self._tasks:
            self._tasks[run_id].cancel()
        self._upkeep.give_up(run_id)
        return run

    async def stop(self) -> None:
        """Leave all runs where they are; the next process goes on with them."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._upkeep.stop()

    async def _drive(self, run_id: str) -> None:
        stages: dict[RunState, Callable[[RunRecord], Awaitable[None]]] = {
            RunState.PENDING: self._begin,
            RunState.INITIALIZING: self._initialize,
            RunState.SHARDING: self._shard,
            RunState.TRAINING: self._train,
            RunState.MERGING: self._merge,
        }
        log_about(run=run_id)
        try:
            while not self._store.find(run_id).state.ended:
                await self._wait_while_held(run_id)
                run = self._store.find(run_id)
                self._store.set_activity(run_id, Activity())
                with _stage_span(run):
                    await stages[run.state](run)
                logger.info("run %s: %s", run.name, self._store.find(run_id).state)
        except LiptError as error:
            await self._fail(run_id, str(error))
        except Exception:
            logger.exception("run %s failed", run_id)
            await self._fail(run_id, "an internal error; the coordinator's log has it.")

    def _on_change(self, run: RunRecord) -> None:
        if run.state.ended:
            level = logging.ERROR if run.state is RunState.FAILED else logging.INFO
            self._events.record(
                EventKind.RUN_ENDED,
                detail=run.state.value,
                level=level,
                run=run.name,
                reason=run.message,
            )

    async def _fail(self, run_id: str, reason: str) -> None:
        await self._advance(run_id, lambda run: self._ended(run, RunState.FAILED, reason))

    async def _computed(self, run: RunRecord, job: Job[ResultT]) -> Took[ResultT]:
        bound, asked = OnData(run.fingerprint, Timed(job)), Asked(run.run_id)
        return await self._in_time(
            run.run_id, lambda: self._compute.run(bound, self._report(run.run_id), asked)
        )

    async def _in_time(self, run_id: str, action: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """What a stage's action gives, once disk and data let it."""
        return await self._holding(run_id, lambda: self._retrying(run_id, action, stage="stage"))

    async def _wait_while_held(self, run_id: str) -> None:
        if not self._store.held(run_id):
            return
        await self._advance(run_id, without_deadline)
        while self._store.held(run_id):
            revision = self._store.revision(run_id)
            await self._store.wait_for_turn(run_id, revision, timeout_seconds=60.0)

    def _ended(self, run: RunRecord, state: RunState, message: str) -> RunRecord:
        return run.changed(state=state, message=message, ended_at=self._wall_clock())

    def _report(self, run_id: str) -> OnProgress:
        def report(now: Progressed) -> None:
            if isinstance(now, Made):
                if isinstance(now.part, Offered):
                    self._store.set_ingredient(run_id, now.part.index, now.part.ingredient)
            else:
                self._store.set_activity(
                    run_id, Activity(now.activity, now.done, now.total, now.ahead)
                )

        return report

    async def _begin(self, run: RunRecord) -> None:
        await self._advance(run.run_id, lambda now: now.changed(state=RunState.INITIALIZING))

    async def _initialize(self, run: RunRecord) -> None:
        took = await self._computed(run, InitializeWeights(run.config))
        await self._advance(
            run.run_id,
            lambda now: now.changed(
                state=RunState.SHARDING,
                initial_weights=took.made.weights,
                inputs=took.made.inputs,
                costs=now.costs.changed(initialization_seconds=took.seconds),
            ),
        )

    async def _shard(self, run: RunRecord) -> None:
        took = await self._computed(run, CutShards(run.config))
        await self._advance(
            run.run_id,
            lambda now: now.changed(
                state=RunState.TRAINING,
                learners=took.made,
                costs=now.costs.changed(sharding_seconds=took.seconds),
            ),
        )

    async def _train(self, run: RunRecord) -> None:
        num_failures = run.num_failures
        while True:
            await self._wait_while_held(run.run_id)
            revision = self._store.revision(run.run_id)
            now = self._deadline_clock()
            run = await self._advance(run.run_id, partial(with_deadline_running, now=now))
            if run.num_failures > num_failures:
                num_failures = run.num_failures
                self._upkeep.look_after(run, self._report(run.run_id))
            decision = decide_closing(run, now=self._deadline_clock())
            if decision.verdict is Closing.FAIL:
                raise RunFailedError(decision.reason)
            if decision.verdict is Closing.MERGE:
                break
            await self._store.wait_for_turn(
                run.run_id, revision, timeout_seconds=decision.seconds_left or 60.0
            )
        logger.info("run %s closes: %s", run.name, decision.reason)
        started = run.training_started_at
        seconds = 0.0 if started is None else self._deadline_clock() - started
        await self._advance(
            run.run_id,
            lambda now: without_open_learners(now, decision.reason).changed(
                state=RunState.MERGING,
                costs=now.costs.changed(training_seconds=seconds),
            ),
        )

    async def _merge(self, run: RunRecord) -> None:
        if run.inputs is None or run.initial_weights is None:
            raise RunFailedError(f"run {run.name} has no initial weights to merge on.")
        report = self._report(run.run_id)
        await self._in_time(run.run_id, lambda: self._restore(run, report))
        took = await self._computed(
            run, MakeSoup(run.config, run.inputs, run.initial_weights, run.results)
        )
        made = took.made
        if isinstance(made, DamagedLearners):
            await self._ask_again(run, made.indices)
            return
        await self._advance(
            run.run_id,
            lambda now: now.changed(
                state=RunState.READY,
                ended_at=self._wall_clock(),
                learners=tuple(
                    learner.changed(ingredient=made.ingredients.get(learner.index))
                    for learner in now.learners
                ),
                soup=made.record,
                pretrained_weights=made.weights,
                costs=now.costs.changed(merging_seconds=took.seconds),
            ),
        )

    async def _ask_again(self, run: RunRecord, indices: tuple[int, ...]) -> None:
        """Go back to training for learners that were in, and are not whole any more."""
        for index in indices:
            self._events.record(
                EventKind.LEARNER_DAMAGED,
                level=logging.ERROR,
                run=run.name,
                learner=index,
                reason=DAMAGED,
            )
        await self._advance(
            run.run_id,
            lambda now: without_results(now, indices).changed(state=RunState.TRAINING),
        )

    async def _advance(self, run_id: str, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        """Write a stage's results and the next state in one transaction."""
        return await self._retrying(
            run_id,
            # A run that was cancelled meanwhile stays so.
            lambda: self._store.update(run_id, lambda run: run if run.state.ended else change(run)),
            stage="record",
        )


@contextmanager
def _stage_span(run: RunRecord) -> Iterator[None]:
    """The block as a stage in the run's own trace, which an earlier process may have begun."""
    name = _SPANS.get(run.state)
    with (
        attached(run.traceparent),
        span(name, run_id=run.run_id, run_name=run.name) if name else nullcontext(),
    ):
        yield
