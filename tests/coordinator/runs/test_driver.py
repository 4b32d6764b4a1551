import asyncio
from typing import Any

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import ComputeError, OtherDataError, StateError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import Meters
from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.coordinator.compute.jobs.pretraining import (
    CutShards,
    DamagedLearners,
    MakeSoup,
    SoupResult,
)
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import LearnerGrant, LearnerLease, steady_clock
from lipt.coordinator.instruments import STAGES
from lipt.coordinator.runs.driver import RunDriver
from lipt.coordinator.runs.store import LearnerProgress, RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import LearnerResult, RunRecord
from lipt.core.pretraining.results import Ingredient
from tests.coordinator.fakes import SOUP_RECORD, FakeCompute, joined
from tests.coordinator.made_up_runs import error, made_up_run, status
from tests.coordinator.state.conftest import stored_runs
from tests.meters import observed

CHANGED = OtherDataError("the data has changed.")
FULL = StateError("/state cannot be used: No space left on device.")
LEARNER = LearnerResult(blob=BlobName.of(b"learner"), loss=1.0, train_seconds=1.0, bytes_received=0)
SOUP = SoupResult(
    weights=BlobName.of(b"soup"),
    record=SOUP_RECORD,
    ingredients={0: Ingredient(position=0, accuracy=0.5, alpha=1.0, kept=True, soup_accuracy=0.5)},
)


class TimedBook(RunStore):
    """Time passes only while a caller waits for a change in vain."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.monotonic = 0.0
        self.waits: list[float] = []

    async def wait_for_update(self, run_id: str, after: int, *, timeout_seconds: float) -> None:
        self.waits.append(timeout_seconds)
        self.monotonic += timeout_seconds


class Bench:
    def __init__(self, database: Database) -> None:
        self.wall = 1000.0
        self.events, self.meters = Events(), Meters()
        self.pauses: list[float] = []
        self.restored: list[RunState] = []
        self.looked_after = asyncio.Event()
        self.database, self.store = database, TimedBook(database)
        # Of all jobs, one after another.
        self.answers: list[object] = [SOUP]
        self.compute = FakeCompute(dict.fromkeys((CutShards, MakeSoup), self.next_answer))
        self.deadline_clock = steady_clock(lambda: self.wall, lambda: self.store.monotonic)
        self.dispatcher = Dispatcher(
            self.store,
            lease_seconds=30.0,
            clock=lambda: self.store.monotonic,
            wall_clock=self.deadline_clock,
            events=self.events,
        )

    def next_answer(self, _: object) -> object:
        return self.answers.pop(0)

    async def restore(self, run: RunRecord, report: object) -> None:
        self.restored.append(run.state)
        self.looked_after.set()

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def driver(self, sleep: Any = None) -> RunDriver:
        return RunDriver(
            self.store,
            self.compute.queue,
            restore=self.restore,
            wall_clock=lambda: self.wall,
            deadline_clock=self.deadline_clock,
            events=self.events,
            meters=self.meters,
            sleep=sleep or self.pause,
        )

    async def drive(self) -> RunRecord:
        driver = self.driver()
        driver.start("r")
        (task,) = driver._tasks.values()
        await task
        return self.store.find("r")

    async def take(self, name: str) -> LearnerLease:
        worker_id = joined(self.dispatcher.workers, name).worker_id
        granted = await self.dispatcher.next_work(worker_id, wait_seconds=0.0)
        assert isinstance(granted, LearnerGrant)
        return granted.lease


@pytest.fixture
async def bench(database: Database) -> Bench:
    return Bench(database)


async def test_learners_and_the_training_state_are_written_together(bench: Bench) -> None:
    run = made_up_run(state=RunState.SHARDING)
    # None of them is left to come, so that the run ends.
    cut = tuple(learner.changed(status=status(LearnerState.FAILED)) for learner in run.learners)
    bench.answers = [cut]
    seen: list[tuple[RunState, int]] = []
    bench.store.listen(lambda now, _: seen.append((now.state, len(now.learners))))
    await bench.store.add(run.changed(learners=()))
    await bench.drive()
    assert seen == [(RunState.SHARDING, 0), (RunState.TRAINING, 3), (RunState.FAILED, 3)]


async def straggling(bench: Bench, run: RunRecord) -> None:
    """One learner is in, one worker has died, one goes on sending heartbeats."""
    await bench.store.add(run)
    quick = await bench.take("quick")
    await bench.take("dead")
    slow = await bench.take("slow")
    await bench.dispatcher.commit(quick, LEARNER)
    bench.dispatcher.heartbeat(slow, LearnerProgress(phase=LearnerPhase.TRAINING, step=3))


async def test_a_run_closes_at_its_deadline_with_finished_learners(bench: Bench) -> None:
    await straggling(bench, made_up_run(deadline_seconds=40.0, min_learners=1))
    run = await bench.drive()
    assert run.state is RunState.READY
    assert bench.store.waits == [40.0]
    assert run.costs.training_seconds == 40.0
    # What the soup took by itself, however long its turn was waited for.
    assert run.costs.merging_seconds == 1.0
    assert [item.state for item in run.learners] == [
        LearnerState.DONE,
        LearnerState.DROPPED,
        LearnerState.DROPPED,
    ]
    assert "the deadline of 40 s has passed with 1 of 3 learners in" in run.learners[1].message


async def test_a_run_with_too_few_learners_fails_at_its_deadline(bench: Bench) -> None:
    await straggling(bench, made_up_run(deadline_seconds=40.0, min_learners=2))
    bench.store.monotonic = 30.0
    bench.dispatcher.heartbeat(await bench.take("slow"), LearnerProgress())
    (silent,) = [it for it in bench.dispatcher.leases.expired() if it.key == ("r", 1)]
    await bench.dispatcher._expire(silent)
    run = await bench.drive()
    assert run.state is RunState.FAILED
    assert bench.store.waits == [10.0]
    assert "1 of 3 learners in, min_learners is 2" in run.message
    assert "learner 1 (queued: worker dead was silent for 30 s)" in run.message
    assert bench.events.count(EventKind.LEASE_EXPIRED) == 1
    assert bench.events.count(EventKind.RUN_ENDED, "failed") == 1


async def test_run_waits_for_a_full_disk_and_computes_nothing_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[Any] = []
    save_run = bench.database.save_run

    async def full_for_a_while(run: RunRecord, learners: Any) -> None:
        if writes:
            raise writes.pop()
        await save_run(run, learners)

    monkeypatch.setattr(bench.database, "save_run", full_for_a_while)
    await straggling(bench, made_up_run())
    await bench.store.update("r", lambda run: run.changed(state=RunState.MERGING))
    bench.answers = [FULL, FULL, SOUP]
    writes += [FULL, FULL, FULL]
    run = await bench.drive()
    assert run.state is RunState.READY
    assert run.pretrained_weights == SOUP.weights
    assert (run.soup, run.learners[0].ingredient) == (SOUP.record, SOUP.ingredients[0])
    assert bench.pauses == [1.0, 2.0, 1.0, 2.0, 4.0]
    assert bench.events.count(EventKind.RETRIED, "stage") == 2
    assert bench.events.count(EventKind.RETRIED, "record") == 3
    (stored,) = await stored_runs(bench.database)
    assert stored == run


async def test_a_damaged_result_is_trained_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedBook, "wait_for_update", RunStore.wait_for_update)
    await bench.store.add(made_up_run(num_learners=1))
    await bench.dispatcher.commit(await bench.take("first"), LEARNER)
    bench.answers = [DamagedLearners((0,)), SOUP]
    driving = asyncio.ensure_future(bench.drive())
    while bench.store.find("r").learners[0].state is not LearnerState.QUEUED:
        revision = bench.store.revision("r")
        await bench.store.wait_for_change("r", revision, timeout_seconds=60.0)
    again = await bench.take("second")
    assert (again.key, again.epoch) == (("r", 0), 2)
    await bench.dispatcher.commit(again, LEARNER)
    run = await driving
    assert run.state is RunState.READY
    assert run.learners[0].failures == 0
    assert bench.events.count(EventKind.LEARNER_DAMAGED) == 1
    # Training and merging took time twice; the run became ready once.
    totals = {stage: total for (stage,), (_, total) in observed(bench.meters, STAGES).items()}
    assert totals == {"initialization": 0.0, "sharding": 0.0, "training": 0.0, "merging": 1.0}


async def test_inputs_are_checked_after_a_failure_and_before_the_soup(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedBook, "wait_for_update", RunStore.wait_for_update)
    await bench.store.add(made_up_run(num_learners=1))
    driving = asyncio.ensure_future(bench.drive())
    damaged = error("theta* arrived damaged")
    await bench.dispatcher.fail(await bench.take("first"), damaged)
    await bench.looked_after.wait()
    await bench.dispatcher.commit(await bench.take("second"), LEARNER)
    await driving
    assert bench.restored == [RunState.TRAINING, RunState.MERGING]


async def test_cancelling_a_run_ends_its_recomputation(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedBook, "wait_for_update", RunStore.wait_for_update)
    given_up = asyncio.Event()

    async def restore(run: RunRecord, report: object) -> None:
        bench.looked_after.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    monkeypatch.setattr(bench, "restore", restore)
    await bench.store.add(made_up_run())
    driver = bench.driver()
    driver.resume_all()
    # It is looked after when it goes on after a restart.
    await bench.looked_after.wait()
    await driver.cancel("r")
    await given_up.wait()


async def test_a_held_run_waits_and_its_deadline_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await straggling(bench, made_up_run(deadline_seconds=40.0))
    bench.store.hold("r", "other data.")
    waits = 0

    async def wait(self: TimedBook, run_id: str, after: int, *, timeout_seconds: float) -> int:
        nonlocal waits
        waits += 1
        self.monotonic += timeout_seconds
        if waits == 3:
            self.release("r")
        if waits > 3:
            self.waits.append(timeout_seconds)
        return self.revision(run_id)

    monkeypatch.setattr(TimedBook, "wait_for_update", wait)
    driver = bench.driver()
    driver.resume_all()
    (task,) = driver._tasks.values()
    await task
    run = bench.store.find("r")
    assert run.state is RunState.READY, run.message
    # Three minutes passed, and all of its 40 s were left.
    assert bench.store.waits == [40.0]
    assert len(bench.compute.jobs) == 1
    # Its inputs were not looked after before its data was there.
    assert bench.restored == [RunState.MERGING]


async def repeat(bench: Bench, *answers: object) -> tuple[object, list[tuple[RunState, str]]]:
    """The final result of an action with these answers, and the activity during its pauses."""
    await bench.store.add(made_up_run(state=RunState.MERGING))
    left, seen = list(answers), list[tuple[RunState, str]]()

    async def action() -> object:
        answer = left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def pause(seconds: float) -> None:
        bench.pauses.append(seconds)
        seen.append((bench.store.shown_state(bench.store.find("r")), bench.store.held("r")))

    return await bench.driver(pause)._patiently("r", action, stage="stage"), seen


async def test_a_held_run_resumes_when_its_data_is_back(bench: Bench) -> None:
    soup, seen = await repeat(bench, CHANGED, CHANGED, CHANGED, "soup")
    assert (soup, bench.pauses) == ("soup", [1.0, 2.0, 4.0])
    assert seen == [(RunState.HELD, f"run name-r waits for its own data: {CHANGED}")] * 3
    assert bench.store.shown_state(bench.store.find("r")) is RunState.MERGING
    assert bench.events.count(EventKind.RUN_HELD) == 1


@pytest.mark.parametrize("error", [ComputeError("gone."), asyncio.CancelledError()])
async def test_other_failures_do_not_hold_the_run(bench: Bench, error: BaseException) -> None:
    with pytest.raises(type(error)):
        await repeat(bench, CHANGED, error)
    assert bench.pauses == [1.0]
    assert bench.store.held("r") == ""
