"""What whoever watches is told, and when: on a real state, with a queue that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import InvalidRequestError
from lipt.common.states import LearnerPhase
from lipt.coordinator.access.caller import Caller, Evidence
from lipt.coordinator.compute.messages import Progressed
from lipt.coordinator.compute.queue import Computation
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.rpc.info import InfoService
from lipt.coordinator.runs.store import LearnerProgress, RunStore
from lipt.coordinator.runs.transitions import LearnerResult
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from lipt.v1 import info_pb2, run_pb2, worker_pb2
from tests.clock import Clock

MakeRun = Callable[..., RunRecord]
LEARNER = LearnerResult(BlobName.of(b"learner"), loss=0.1, train_seconds=6.0, bytes_received=1)


class Bench:
    def __init__(self, database: Database, clock: Clock) -> None:
        self.clock = clock
        self.store = RunStore(database)
        self.dispatcher = Dispatcher(self.store, lease_seconds=30.0, clock=clock, wall_clock=clock)
        self.jobs: list[Computation] = []
        self.stopping = asyncio.Event()
        compute = cast("Any", SimpleNamespace(computations=lambda: self.jobs))
        self.watching = InfoService(
            cast("Any", None),
            self.store,
            self.dispatcher,
            compute,
            self.stopping,
            default_run=RunConfig(),
            device="cpu",
            wall_clock=clock,
        )

    def join(self, instance_id: str, shown: Evidence | None = None) -> str:
        return self.dispatcher.workers.register(
            instance_id,
            name=f"worker-{instance_id}",
            device="cpu",
            versions={},
            allowed_modules=(),
            shown=shown or Evidence(secret=instance_id),
        ).worker_id

    def watch(self, interval_seconds: float = 0.01, num_runs: int = 20) -> Any:
        request = info_pb2.WatchServiceRequest(interval_seconds=interval_seconds, num_runs=num_runs)
        return self.watching.WatchService(request, cast("Any", None))

    async def next_two(self, change: Callable[[], Any]) -> list[info_pb2.WatchServiceResponse]:
        """The first answer, and the one after `change`."""
        answers = self.watch()
        first = await anext(answers)
        changed = change()
        if asyncio.iscoroutine(changed):
            await changed
        second = await anext(answers)
        await answers.aclose()
        return [first, second]


@pytest.fixture
async def bench(database: Database, clock: Clock) -> Bench:
    return Bench(database, clock)


async def test_first_answer_has_all_and_the_next_what_has_changed(
    bench: Bench, make_run: MakeRun
) -> None:
    for name in "abc":
        await bench.store.add(make_run(name))
    first, second = await bench.next_two(lambda: bench.store.hold("b", "its data is away."))
    assert [run.run_id for run in first.runs] == ["c", "b", "a"]
    assert [(run.run_id, run.state) for run in second.runs] == [("b", run_pb2.RUN_STATE_HELD)]
    assert first.num_runs == 3


async def test_learner_is_shown_with_its_times_and_what_its_worker_does(
    bench: Bench, make_run: MakeRun
) -> None:
    await bench.store.add(make_run("r", num_learners=1))
    worker_id = bench.join("i" * 32)
    await bench.dispatcher.next_work(worker_id, wait_seconds=0.0)
    key = AssignmentKey("r", 0)
    said = LearnerProgress(LearnerPhase.TRAINING, step=2, loss=0.5)
    answers = bench.watch(num_runs=1)
    await anext(answers)
    bench.dispatcher.heartbeat(worker_id, key, 1, said)
    (out,) = (await anext(answers)).runs[0].learners
    assert (out.phase, out.step, out.num_steps) == (worker_pb2.LEARNER_PHASE_TRAINING, 2, 10)
    assert out.leased_at.ToSeconds() == 100
    assert not out.HasField("committed_at")
    bench.clock.now += 7.0
    await bench.dispatcher.commit(worker_id, key, 1, LEARNER)
    (done,) = (await anext(answers)).runs[0].learners
    assert (done.committed_at.ToSeconds(), done.phase) == (107, 0)


async def test_worker_is_shown_with_when_it_joined_and_its_certificate_s_end(bench: Bench) -> None:
    caller = Caller("certificate:1", "box", frozenset(), certificate="1", expires_at=5000.0)

    def later() -> None:
        bench.clock.now += 50.0
        bench.join("j" * 32)

    bench.join("i" * 32, Evidence(caller, secret="i" * 32))
    first, second = await bench.next_two(later)
    (worker,) = first.workers
    assert worker.certificate_expires_at.ToSeconds() == 5000
    assert worker.joined_at.ToSeconds() == 100
    assert [one.joined_at.ToSeconds() for one in second.workers] == [100, 150]
    assert not second.workers[1].HasField("certificate_expires_at")
    assert second.num_workers == 2


async def test_queue_is_shown_and_time_alone_is_no_news(bench: Bench) -> None:
    def job(seconds: float, done: int) -> Computation:
        progress = Progressed("merging learners", done, 9)
        return Computation("dear", "MakeSoup", "r", 0, True, seconds, progress)

    bench.jobs = [job(1.0, 3)]
    answers = bench.watch(num_runs=1)
    (shown,) = (await anext(answers)).computations
    assert (shown.job, shown.seconds, shown.progress.done) == ("MakeSoup", 1.0, 3)
    waiting = asyncio.ensure_future(anext(answers))
    bench.jobs = [job(2.0, 3)]
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    bench.jobs = [job(3.0, 4)]
    assert (await waiting).computations[0].progress.done == 4


async def test_stream_ends_when_the_service_stops(bench: Bench) -> None:
    answers = bench.watch(60.0)
    await anext(answers)
    bench.stopping.set()
    assert [answer async for answer in answers] == []


@pytest.mark.parametrize(
    ("interval_seconds", "num_runs"), [(float("nan"), 1), (61.0, 1), (1.0, -1), (1.0, 201)]
)
async def test_more_than_is_answered_is_refused(
    bench: Bench, interval_seconds: float, num_runs: int
) -> None:
    answers = bench.watch(interval_seconds, num_runs)
    with pytest.raises(InvalidRequestError, match=r"outside 1\.\.200"):
        await anext(answers)
