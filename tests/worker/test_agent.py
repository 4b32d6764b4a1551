import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lipt.common.backoff import RetryLevels
from lipt.common.errors import (
    DataError,
    DivergedError,
    LearnerRejectedError,
    LearnerStoppedError,
    LiptError,
    OverLimitError,
    StaleLeaseError,
    UnknownRunError,
    UnknownWorkerError,
    UnreachableError,
)
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import Meters
from lipt.common.states import DivergedQuantity, Divergence
from lipt.v1 import worker_pb2
from lipt.worker.agent import Agent
from lipt.worker.client import Assignment, LeaseKeeper
from lipt.worker.instruments import LEARNERS
from tests.clock import Clock
from tests.meters import sums
from tests.worker.fake_client import FakeClient, make_assignment, make_worker

PATIENCE_SECONDS = 60.0
Work = Callable[[LeaseKeeper, Callable[[], bool]], None]


def succeed(lease: LeaseKeeper, should_stop: Callable[[], bool]) -> None: ...


def fail(error: BaseException) -> Work:
    def work(lease: LeaseKeeper, should_stop: Callable[[], bool]) -> None:
        raise error

    return work


@dataclass
class World:
    fake: FakeClient
    events: Events = field(default_factory=Events)
    meters: Meters = field(default_factory=Meters)
    work: list[Work] = field(default_factory=lambda: [succeed])
    done: list[tuple[str, str]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    when_paused: Callable[[], object] = lambda: None

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.when_paused()

    def agent(
        self,
        max_learners: int | None = None,
        *,
        max_idle_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        levels: RetryLevels | None = None,
    ) -> Agent:
        flags = {"name": "one", "max_learners": max_learners, "max_idle_seconds": max_idle_seconds}
        worker = make_worker(self.fake, self.fake.blobs.store, **flags)
        levels = levels or RetryLevels()
        worker = replace(worker, events=self.events, meters=self.meters, levels=levels)
        worker.carry_out = self.carry_out  # type: ignore[method-assign]
        agent = Agent(worker, pause=self.pause, clock=clock)
        self.fake.when_idle = agent.stop
        return agent

    def carry_out(
        self, assignment: Assignment, lease: LeaseKeeper, should_stop: Callable[[], bool]
    ) -> None:
        self.done.append((self.fake.worker_id, assignment.assignment_id))
        (self.work.pop(0) if len(self.work) > 1 else self.work[0])(lease, should_stop)

    def outcomes(self) -> dict[str, float]:
        counted = sums(self.meters, LEARNERS)
        return {outcome: number for (outcome,), number in counted.items() if number}

    def live(self, *assignments: Assignment | Exception | None) -> None:
        self.fake.assignments = list(assignments)
        self.agent().run()


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(FakeClient(tmp_path))


def test_a_worker_registers_once_and_trains_learners_in_turn(world: World) -> None:
    world.live(make_assignment(0), None, make_assignment(1))
    assert [name for _, name in world.fake.registered] == ["one"]
    assert world.done == [("worker-1", "r/0"), ("worker-1", "r/1")]
    assert world.fake.released == []
    assert world.pauses == []


def test_a_worker_ends_after_its_number_of_learners(world: World) -> None:
    world.fake.assignments = [make_assignment(index) for index in range(4)]
    world.work = [fail(DataError("bad.")), succeed]
    world.agent(max_learners=2).run()
    assert [name for _, name in world.done] == ["r/0", "r/1", "r/2"]
    assert len(world.fake.assignments) == 1


def test_a_stop_interrupts_unfinished_work(world: World) -> None:
    world.fake.assignments = [make_assignment(0)]
    idle = world.agent(max_learners=2)
    idle.run()
    assert idle.stopped_early
    world.fake.assignments = [make_assignment(0)]
    done = world.agent(max_learners=1)
    world.work = [lambda *_: done.stop()]
    done.run()
    assert not done.stopped_early


def test_an_idle_worker_ends(world: World, clock: Clock) -> None:
    agent = world.agent(max_idle_seconds=40.0, clock=clock)

    def wait() -> None:
        clock.now += world.fake.waits[-1]

    world.fake.when_idle = wait
    world.work = [lambda *_: setattr(clock, "now", clock.now + 1000.0)]
    world.fake.assignments = [None, make_assignment(0)]
    agent.run()
    # The first poll is answered at once; after the learner it has as much patience as before.
    assert world.fake.waits == [30.0, 30.0, 30.0, 10.0]
    assert world.done == [("worker-1", "r/0")]


def test_a_worker_registers_again_after_a_restart(world: World) -> None:
    world.live(make_assignment(0), UnknownWorkerError("who?"), make_assignment(1))
    first, second = world.fake.registered
    assert first == second
    assert world.done == [("worker-1", "r/0"), ("worker-2", "r/1")]
    # It is there: nothing has to be waited for.
    assert world.pauses == []
    world.fake.refusals["register"] = [UnreachableError("nobody answers.")] * 100
    agent = world.agent()
    world.when_paused = agent.stop
    agent.run()
    assert world.events.count(EventKind.RETRIED, "joining") == 1


def test_a_worker_without_a_coordinator_warns_once_a_minute(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # It tries every second: at 0 to 129 s in vain, and at 130 s somebody answers.
    world.fake.refusals["register"] = [UnreachableError("nobody answers.")] * 130
    agent = world.agent(levels=RetryLevels(clock=clock))
    world.when_paused = lambda: setattr(clock, "now", clock.now + world.pauses[-1])
    with caplog.at_level(logging.INFO):
        agent.run()
    assert world.events.count(EventKind.RETRIED, "joining") == 130
    warnings = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert all("nobody answers. Trying again until" in line for line in warnings)
    assert sum("joined" in line.getMessage() for line in caplog.records) == 1


def test_a_diverged_learner_is_released_with_values_and_step(world: World) -> None:
    error = DivergedError("the learner diverged.")
    error.divergence = Divergence(DivergedQuantity.LOSS, 2, 5)
    world.work = [fail(error), fail(DataError("it has 3 images.")), succeed]
    world.live(*map(make_assignment, range(3)))
    assert world.fake.divergences == [error.divergence, None]


@pytest.mark.parametrize(
    ("error", "released", "declined", "outcome"),
    [
        (DataError("it has 3 images."), "DataError: it has 3 images.", "", "failed"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero", "", "failed"),
        # A user's model may end the process, it thinks.
        (SystemExit("enough"), "SystemExit: enough", "", "failed"),
        (OverLimitError("too many threads."), "", "too many threads.", "declined"),
        # These the coordinator knows of.
        (LearnerRejectedError("it is not finite."), "", "", "refused"),
        (StaleLeaseError("too late."), "", "", "stopped"),
        (UnknownRunError("gone."), "", "", "stopped"),
        (UnknownWorkerError("who?"), "", "", "stopped"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_failed_learner_is_counted_and_returned_with_the_reason(
    world: World,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    released: str,
    declined: str,
    outcome: str,
) -> None:
    world.work = [fail(error), succeed]
    world.live(make_assignment(0), make_assignment(1))
    assert world.fake.released == ([("worker-1", "r/0", released)] if released else [])
    assert world.fake.declined == ([("worker-1", "r/0", declined)] if declined else [])
    assert world.done[1] == ("worker-1", "r/1")
    assert world.outcomes() == {outcome: 1, "in": 1}
    # Not at once: it could be offered the very same again.
    assert len(world.pauses) == bool(released or declined)
    assert ("Traceback" in caplog.text) is not isinstance(error, LiptError)


def test_a_lost_lease_stops_training_and_the_next_learner_starts(world: World) -> None:
    lost: list[bool] = []

    def train(lease: LeaseKeeper, should_stop: Callable[[], bool]) -> None:
        lost.append(should_stop())
        world.fake.refusals["heartbeat"] = [StaleLeaseError("somebody else's.")]
        lease.report(worker_pb2.LEARNER_PHASE_TRAINING, 1)
        assert lease.lost.wait(PATIENCE_SECONDS)
        lost.append(should_stop())
        raise LearnerStoppedError("stopped.")

    world.work = [train, succeed]
    world.live(make_assignment(0), make_assignment(1))
    assert lost == [False, True]
    assert world.fake.released == []
    assert world.done == [("worker-1", "r/0"), ("worker-1", "r/1")]


def test_a_stop_returns_the_learner_in_training(world: World) -> None:
    agent = world.agent()
    stopped: list[bool] = []

    def train(lease: LeaseKeeper, should_stop: Callable[[], bool]) -> None:
        agent.stop()
        assert world.fake.given_back.wait(PATIENCE_SECONDS)
        stopped.append(should_stop())
        raise LearnerStoppedError("stopped.")

    world.work = [train]
    world.fake.assignments = [make_assignment(0), make_assignment(1)]
    agent.run()
    assert world.fake.released == [("worker-1", "r/0", "")]
    assert stopped == [True]
    assert world.outcomes() == {"stopped": 1}
    assert len(world.fake.assignments) == 1
