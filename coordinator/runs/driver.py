"""Run driver: one task per run takes it from stage to stage.

A stage's result and the next state are one transaction: a restart repeats no finished stage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, TypeVar

from lipt.common.backoff import Backoff
from lipt.common.errors import LiptError, OtherDataError, RunFailedError, StateError
from lipt.common.observability.logs import EventKind, Events, log_about, logging_about
from lipt.common.observability.metrics import Meters
from lipt.common.observability.tracing import attached, span
from lipt.common.states import RunState
from lipt.coordinator.compute.jobs.pretraining import (
    CutShards,
    DamagedLearners,
    InitializeWeights,
    LearnerOffered,
    MakeSoup,
)
from lipt.coordinator.compute.messages import Job, JobOptions, OnProgress, Progressed
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.instruments import STAGES
from lipt.coordinator.runs.availability import record_held
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.runs.transitions import (
    DAMAGED,
    Closing,
    decide_closing,
    with_deadline_running,
    without_open_learners,
    without_results,
)
from lipt.coordinator.state.records import RunRecord

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
Restore = Callable[[RunRecord, OnProgress], Awaitable[None]]

_BACKOFF = Backoff(first_seconds=1.0, max_seconds=30.0)
# Stage names in traces, and their fields in the cost record.
_STAGES = {
    RunState.INITIALIZING: ("initialize weights", "initialization_seconds"),
    RunState.SHARDING: ("cut shards", "sharding_seconds"),
    RunState.TRAINING: ("train learners", "training_seconds"),
    RunState.MERGING: ("merge learners", "merging_seconds"),
}


@dataclass(eq=False)
class RunDriver:
    """One task per run that has not ended."""

    store: RunStore
    compute: ComputeQueue
    _: KW_ONLY
    restore: Restore
    wall_clock: Callable[[], float]
    # Clock of `training_started_at`.
    deadline_clock: Callable[[], float]
    events: Events = field(default_factory=Events)
    meters: Meters = field(default_factory=Meters)
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Tasks that restore inputs while training continues and the deadline runs.
        self._restoring: dict[str, asyncio.Task[None]] = {}
        self.store.listen(self._on_change)

    def start(self, run_id: str) -> None:
        _begin(self._tasks, run_id, self._drive(run_id))

    def resume_all(self) -> None:
        for run in self.store.live():
            # A held run waits in its task.
            self.start(run.run_id)
            if not self.store.held(run.run_id):
                with logging_about(run=run.run_id), attached(run.traceparent):
                    logger.info("run %s goes on from %s", run.name, run.state)
                    self._look_after(run)

    async def cancel(self, run_id: str) -> RunRecord:
        log_about(run=run_id)

        def change(run: RunRecord) -> RunRecord:
            return run if run.state.ended else self._ended(run, RunState.CANCELLED, "")

        run = await self.store.update(run_id, change)
        for tasks in (self._tasks, self._restoring):
            if run_id in tasks:
                tasks[run_id].cancel()
        return run

    async def stop(self) -> None:
        tasks = (*self._tasks.values(), *self._restoring.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _drive(self, run_id: str) -> None:
        stages: dict[RunState, Callable[[RunRecord], Awaitable[None]]] = {
            RunState.INITIALIZING: self._initialize,
            RunState.SHARDING: self._shard,
            RunState.TRAINING: self._train,
            RunState.MERGING: self._merge,
        }
        log_about(run=run_id)
        try:
            while not self.store.find(run_id).state.ended:
                await self._wait_while_held(run_id)
                run = self.store.find(run_id)
                self.store.set_activity(run_id, Progressed())
                if run.state is RunState.PENDING:
                    await self._advance(
                        run_id, lambda run: run.changed(state=RunState.INITIALIZING)
                    )
                else:
                    traced = span(_STAGES[run.state][0], run_id=run_id, run_name=run.name)
                    with attached(run.traceparent), traced:
                        await stages[run.state](run)
                logger.info("run %s: %s", run.name, self.store.find(run_id).state)
        except LiptError as error:
            await self._fail(run_id, str(error))
        except Exception:
            logger.exception("run %s failed", run_id)
            await self._fail(run_id, "an internal error; the coordinator's log has it.")

    def _on_change(self, run: RunRecord, _: object) -> None:
        if run.state.ended:
            level = logging.ERROR if run.state is RunState.FAILED else logging.INFO
            self.events.record(
                EventKind.RUN_ENDED,
                detail=run.state.value,
                level=level,
                run=run.name,
                reason=run.message,
            )

    async def _fail(self, run_id: str, reason: str) -> None:
        await self._advance(run_id, lambda run: self._ended(run, RunState.FAILED, reason))

    async def _patiently(
        self, run_id: str, action: Callable[[], Awaitable[ResultT]], *, stage: str
    ) -> ResultT:
        """Repeat `action` with growing pauses until disk and data allow it."""
        num_refused = num_held = 0
        try:
            while True:
                try:
                    return await action()
                except StateError as error:
                    num_refused += 1
                    pause = _BACKOFF.pause_seconds(num_refused)
                    run_name = self.store.find(run_id).name
                    self.events.retried(stage, error, run=run_name, after_seconds=pause)
                    self.store.set_activity(run_id, Progressed(f"waiting for the disk: {error}"))
                except OtherDataError as error:
                    num_held += 1
                    pause = _BACKOFF.pause_seconds(num_held)
                    run = self.store.find(run_id)
                    reason = f"run {run.name} waits for its own data: {error}"
                    if num_held == 1:
                        record_held(run, reason, self.events)
                    self.store.hold(run_id, reason)
                await self.sleep(pause)
        finally:
            if num_held:
                self.store.release(run_id)

    async def _computed(self, run: RunRecord, job: Job[ResultT]) -> tuple[ResultT, float]:
        seconds = 0.0

        def take(part: object) -> None:
            if isinstance(part, LearnerOffered):
                self.store.set_ingredient(run.run_id, part.index, part.ingredient)

        def note(took: float) -> None:
            nonlocal seconds
            seconds = took

        options = JobOptions(run.run_id, fingerprint=run.fingerprint, on_part=take, took=note)
        report = partial(self.store.set_activity, run.run_id)
        made = await self._patiently(
            run.run_id, lambda: self.compute.run(job, report, options), stage="stage"
        )
        return made, seconds

    async def _restored(self, run: RunRecord) -> None:
        report = partial(self.store.set_activity, run.run_id)
        await self._patiently(run.run_id, lambda: self.restore(run, report), stage="stage")

    def _look_after(self, run: RunRecord) -> None:

        async def look() -> None:
            try:
                await self._restored(run)
            except LiptError as error:
                logger.error("run %s: %s", run.name, error)  # noqa: TRY400 - said in full

        if run.run_id not in self._restoring:
            _begin(self._restoring, run.run_id, look())

    async def _wait_while_held(self, run_id: str) -> None:
        if not self.store.held(run_id):
            return
        # The deadline restarts after the hold.
        await self._advance(run_id, lambda run: run.changed(training_started_at=None))
        while self.store.held(run_id):
            revision = self.store.revision(run_id)
            await self.store.wait_for_update(run_id, revision, timeout_seconds=60.0)

    def _ended(self, run: RunRecord, state: RunState, message: str) -> RunRecord:
        return run.changed(state=state, message=message, ended_at=self.wall_clock())

    async def _initialize(self, run: RunRecord) -> None:
        made, seconds = await self._computed(run, InitializeWeights(run.config))
        stored = {"initial_weights": made.weights, "inputs": made.inputs}
        await self._finish(run, RunState.SHARDING, seconds, **stored)

    async def _shard(self, run: RunRecord) -> None:
        learners, seconds = await self._computed(run, CutShards(run.config))
        await self._finish(run, RunState.TRAINING, seconds, learners=learners)

    async def _train(self, run: RunRecord) -> None:
        num_failures = run.num_failures
        while True:
            await self._wait_while_held(run.run_id)
            revision = self.store.revision(run.run_id)
            now = self.deadline_clock()
            run = await self._advance(run.run_id, partial(with_deadline_running, now=now))
            if run.num_failures > num_failures:
                num_failures = run.num_failures
                self._look_after(run)
            decision = decide_closing(run, now=self.deadline_clock())
            if decision.verdict is Closing.FAIL:
                raise RunFailedError(decision.reason)
            if decision.verdict is Closing.MERGE:
                break
            await self.store.wait_for_update(
                run.run_id, revision, timeout_seconds=decision.seconds_left or 60.0
            )
        logger.info("run %s closes: %s", run.name, decision.reason)
        started = run.training_started_at
        seconds = 0.0 if started is None else self.deadline_clock() - started
        await self._advance(
            run.run_id,
            lambda now: without_open_learners(now, decision.reason).changed(
                state=RunState.MERGING, costs=now.costs.changed(training_seconds=seconds)
            ),
        )

    async def _merge(self, run: RunRecord) -> None:
        await self._restored(run)
        job = MakeSoup(run.config, *run.theta, run.results)
        made, seconds = await self._computed(run, job)
        if isinstance(made, DamagedLearners):
            lost = made.indices
            for index in lost:
                self.events.record(
                    EventKind.LEARNER_DAMAGED,
                    level=logging.ERROR,
                    run=run.name,
                    learner=index,
                    reason=DAMAGED,
                )
            await self._advance(
                run.run_id, lambda now: without_results(now, lost).changed(state=RunState.TRAINING)
            )
            return
        ready = await self._finish(
            run,
            RunState.READY,
            seconds,
            ended_at=self.wall_clock(),
            learners=tuple(
                learner.changed(ingredient=made.ingredients.get(learner.index))
                for learner in run.learners
            ),
            soup=made.record,
            pretrained_weights=made.weights,
        )
        if ready.state is RunState.READY:
            for name, took in ready.costs.model_dump().items():
                self.meters.observe(STAGES, took, name.removesuffix("_seconds"))

    async def _finish(
        self, run: RunRecord, following: RunState, seconds: float, **made: Any
    ) -> RunRecord:
        """Write a stage's results and seconds, and the next state, in one transaction."""
        cost = {_STAGES[run.state][1]: seconds}
        return await self._advance(
            run.run_id,
            lambda now: now.changed(state=following, costs=now.costs.changed(**cost), **made),
        )

    async def _advance(self, run_id: str, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        """Change the run durably unless it has ended; waits for the disk."""
        return await self._patiently(
            run_id,
            lambda: self.store.update(run_id, lambda run: run if run.state.ended else change(run)),
            stage="record",
        )


def _begin(
    tasks: dict[str, asyncio.Task[None]], run_id: str, work: Coroutine[Any, Any, None]
) -> None:
    task = tasks[run_id] = asyncio.create_task(work, name=f"run {run_id}")
    task.add_done_callback(lambda _: tasks.pop(run_id, None))
