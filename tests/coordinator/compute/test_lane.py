"""Who is computed next, who is dropped and who is refused, with a process that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from lipt.common.errors import BudgetError, QueueFullError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import Meters
from lipt.coordinator.compute.lane import Lane
from lipt.coordinator.compute.messages import Asked, Cost, DroppedError
from lipt.coordinator.compute.process import ComputeProcess
from lipt.coordinator.compute.progress import Made, OnProgress, Progressed
from lipt.coordinator.instruments import JOB, QUEUE_WAIT
from lipt.coordinator.settings import ComputeSettings
from tests.clock import Clock


class PlayedProcess:
    """Begins jobs, and ends each when the test says so."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.say: OnProgress = lambda _: None
        self.stopped = False
        self._end: asyncio.Future[Any] = asyncio.Future()

    async def run(self, job: Any, on_progress: OnProgress) -> Any:
        self.begun.append(job)
        self.say = on_progress
        self._end = asyncio.get_running_loop().create_future()
        return await self._end

    async def end(self, result: object = "done") -> None:
        """Let the present job end, with an error where that is given."""
        if isinstance(result, BaseException):
            self._end.set_exception(result)
        else:
            self._end.set_result(result)
        await settled()

    def drop(self) -> None:
        self.begun.append("dropped")

    def stop(self) -> None:
        self.stopped = True


async def settled() -> None:
    """All that can go on has done so."""
    for _ in range(6):
        await asyncio.sleep(0)


@dataclass(eq=False)
class Request:
    """Somebody who waits, and what was heard."""

    task: asyncio.Task[Any]
    heard: list[Progressed]

    @property
    def ahead(self) -> list[int]:
        return [progressed.ahead for progressed in self.heard]


class Bench:
    def __init__(self, clock: Clock, **limits: Any) -> None:
        self.clock, self.events = clock, Events()
        self.process = PlayedProcess()
        process = cast("ComputeProcess", cast("Any", self.process))
        self.meters = Meters()
        self.lane = Lane(
            process,
            ComputeSettings(**limits),
            self.events,
            clock=clock,
            name="dear",
            meters=self.meters,
        )

    def ask(
        self,
        job: str,
        caller: str | Callable[[], frozenset[str]] | None = "me",
        run: str = "r",
        cost: Cost = Cost.DEAR,
    ) -> Request:
        callers = (lambda: frozenset({caller})) if isinstance(caller, str) else caller
        heard: list[Progressed] = []
        asked = Asked(run, callers, cost)
        job_: Any = job
        return Request(asyncio.create_task(self.lane.run(job_, heard.append, asked)), heard)

    async def leave(self, *requests: Request) -> None:
        for request in requests:
            request.task.cancel()
        await asyncio.wait({request.task for request in requests})
        await settled()

    async def end_all(self) -> list[Any]:
        """End one job after another, each a second long; those that have begun so far."""
        while self.lane._present is not None:
            self.clock.now += 1.0
            await self.process.end()
        return self.process.begun


@pytest.fixture
async def bench(clock: Clock) -> Bench:
    return Bench(clock)


async def test_one_job_is_computed_at_a_time_and_each_gets_its_result(bench: Bench) -> None:
    first, second = bench.ask("first"), bench.ask("second")
    await settled()
    assert bench.process.begun == ["first"]
    assert bench.lane.num_waiting == 1
    await bench.process.end(1)
    await bench.process.end(2)
    assert (await first.task, await second.task) == (1, 2)
    assert bench.lane.num_waiting == 0


async def test_who_watches_sees_what_is_computed_and_then_who_waits_in_order(
    bench: Bench,
) -> None:
    bench.ask("first", run="r1")
    bench.ask("second", run="r2", cost=Cost.SIGNALS)
    bench.ask("third", caller=None, run="r3", cost=Cost.LABELS)
    await settled()
    bench.clock.now += 3.0
    bench.process.say(Progressed("squaring", 1, 2))
    bench.process.say(Made("", 0, 0, part="a part"))
    seen = bench.lane.computations("dear")
    assert [(one.run, one.num_callers, one.computing) for one in seen] == [
        ("r1", 1, True),
        ("r3", 0, False),
        ("r2", 1, False),
    ]
    assert (seen[0].job, seen[0].lane, seen[0].seconds) == ("str", "dear", 3.0)
    assert [one.progress.activity for one in seen] == ["squaring", *["waiting for its turn"] * 2]
    await bench.end_all()
    assert bench.lane.computations("dear") == ()


async def test_waiting_and_computing_are_measured_apart(bench: Bench) -> None:
    bench.ask("first")
    await settled()
    bench.clock.now += 2.0
    bench.ask("second")
    assert bench.lane.oldest_seconds == 0.0
    await settled()
    bench.clock.now += 3.0
    assert bench.lane.oldest_seconds == 3.0
    await bench.end_all()  # the first after 6 s, the second, which waited 4 s, after 1 s
    assert bench.lane.oldest_seconds == 0.0
    waited = bench.meters.distributions(QUEUE_WAIT)[("dear",)]
    assert (sum(waited.counts), waited.total) == (2, 4.0)
    computed = bench.meters.distributions(JOB)[("dear", "str")]
    assert (sum(computed.counts), computed.total) == (2, 7.0)


async def test_error_reaches_who_asked_and_the_next_begins(bench: Bench) -> None:
    first, second = bench.ask("first"), bench.ask("second")
    await settled()
    await bench.process.end(BudgetError("budget 0 is outside 1..10."))
    await bench.process.end(2)
    with pytest.raises(BudgetError):
        await first.task
    assert await second.task == 2


async def test_who_waits_is_told_the_place_and_then_how_far_it_is(bench: Bench) -> None:
    first, second, third = (bench.ask(job) for job in ("first", "second", "third"))
    await settled()
    assert (second.ahead, third.ahead) == ([1], [2])
    assert second.heard[0].activity == "waiting for its turn"
    await bench.process.end()
    bench.process.say(Progressed("squaring", 1, 2))
    await settled()
    assert [item.activity for item in second.heard[1:]] == ["beginning", "squaring"]
    assert second.ahead == [1, 0, 0]
    assert third.ahead == [2, 1]
    assert first.ahead == [0]
    await bench.end_all()


async def test_job_that_nobody_waits_for_is_never_begun(bench: Bench) -> None:
    first, second, third = (bench.ask(job) for job in ("first", "second", "third"))
    await settled()
    await bench.leave(second)
    assert third.ahead == [2, 1]
    assert await bench.end_all() == ["first", "third"]
    assert bench.events.count(EventKind.JOB_DROPPED, "waiting") == 1
    assert first.task.done()


async def test_job_under_way_is_dropped_with_who_waits_for_it_and_the_next_begins_when_it_ends(
    bench: Bench,
) -> None:
    first, second = bench.ask("first"), bench.ask("second")
    await settled()
    await bench.leave(first)
    assert bench.process.begun == ["first", "dropped"]
    # What it says on its way out is nobody's.
    bench.process.say(Progressed("squaring", 1, 2))
    assert first.ahead == [0]
    await bench.process.end(DroppedError())
    assert bench.process.begun == ["first", "dropped", "second"]
    await bench.process.end(2)
    assert await second.task == 2
    assert bench.events.count(EventKind.JOB_DROPPED, "computing") == 1


async def test_leaving_after_the_end_drops_nothing(bench: Bench) -> None:
    first, second = bench.ask("first"), bench.ask("second")
    await settled()
    bench.process._end.set_result("done")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.task.cancel()
    await settled()
    assert bench.process.begun == ["first", "second"]
    await bench.end_all()
    assert await second.task == "done"


async def test_six_hundred_that_were_asked_and_cancelled_are_not_computed(clock: Clock) -> None:
    bench = Bench(clock, max_waiting=1000, max_waiting_per_caller=1000)
    dear = bench.ask("dear", "honest")
    flood = [bench.ask(f"flood {number}", "flood") for number in range(600)]
    await settled()
    assert bench.lane.num_waiting == 600
    await bench.leave(*flood)
    assert bench.lane.num_waiting == 0
    late = bench.ask("late", "honest")
    await settled()
    assert await bench.end_all() == ["dear", "late"]
    assert bench.events.count(EventKind.JOB_DROPPED, "waiting") == 600
    assert dear.task.done()
    assert late.task.done()


async def test_callers_take_turns(bench: Bench) -> None:
    for job in ("a1", "a2", "a3"):
        bench.ask(job, "a")
    for job in ("b1", "b2"):
        bench.ask(job, "b")
    await settled()
    assert await bench.end_all() == ["a1", "b1", "a2", "b2", "a3"]


async def test_who_had_much_lets_others_go_first(bench: Bench) -> None:
    bench.ask("long", "a")
    await settled()
    bench.clock.now += 30.0
    bench.ask("a1", "a")
    bench.ask("b1", "b")
    bench.ask("b2", "b")
    await settled()
    await bench.process.end()
    assert await bench.end_all() == ["long", "b1", "b2", "a1"]


async def test_cheaper_jobs_go_first(bench: Bench) -> None:
    bench.ask("under way", cost=Cost.SIGNALS)
    bench.ask("scores", cost=Cost.SIGNALS)
    bench.ask("labels", cost=Cost.LABELS)
    await settled()
    assert await bench.end_all() == ["under way", "labels", "scores"]


async def test_job_whose_callers_have_all_gone_is_passed_over_until_it_is_dropped(
    bench: Bench,
) -> None:
    callers = {"flood"}
    bench.ask("under way")
    abandoned = bench.ask("abandoned", lambda: frozenset(callers))
    bench.ask("next")
    await settled()
    callers.clear()
    assert await bench.end_all() == ["under way", "next"]
    await bench.leave(abandoned)


async def test_more_than_may_wait_are_refused_with_the_time_to_ask_again(clock: Clock) -> None:
    bench = Bench(clock, max_waiting=3, max_waiting_per_caller=2)
    under_way = bench.ask("under way", "a")
    kept = [bench.ask(f"a{number}", "a") for number in range(2)]
    await settled()
    clock.now += 7.0
    refused = bench.ask("a2", "a")
    words = "2 requests of this caller wait to be computed, 2 may. Ask again in 7 s."
    with pytest.raises(QueueFullError, match=words) as raised:
        await refused.task
    assert raised.value.retry_after_seconds == 7.0
    kept.append(bench.ask("b0", "b"))
    await settled()
    words = "3 requests wait to be computed, 3 may"
    with pytest.raises(QueueFullError, match=words):
        await bench.ask("c0", "c").task
    # A run's own are never refused, nor do they take the place of others.
    kept += [bench.ask(f"run {number}", None) for number in range(5)]
    await settled()
    assert bench.lane.num_waiting == 8
    # Who leaves makes room.
    await bench.leave(kept[0])
    kept[0] = bench.ask("again", "a")
    await settled()
    await bench.end_all()
    assert all(request.task.done() for request in (under_way, *kept))


async def test_jobs_of_runs_take_no_caller_s_place(clock: Clock) -> None:
    bench = Bench(clock, max_waiting=1, max_waiting_per_caller=1)
    asked = [bench.ask("under way", "a"), *(bench.ask(f"run {number}", None) for number in "123")]
    await settled()
    asked.append(bench.ask("b0", "b"))
    await settled()
    assert bench.lane.num_waiting == 4
    await bench.end_all()
    assert all(request.task.done() for request in asked)


@pytest.mark.parametrize(("seconds", "told"), [(0.01, 1.0), (1000.0, 60.0)])
async def test_time_to_ask_again_is_within_bounds(
    clock: Clock, seconds: float, told: float
) -> None:
    bench = Bench(clock, max_waiting=1)
    bench.ask("under way")
    waiting = bench.ask("waiting")
    await settled()
    clock.now += seconds
    with pytest.raises(QueueFullError) as raised:
        await bench.ask("refused").task
    assert raised.value.retry_after_seconds == told
    await bench.end_all()
    assert waiting.task.done()


async def test_stopping_ends_the_process_and_leaves_nobody_waiting(bench: Bench) -> None:
    first, second = bench.ask("first"), bench.ask("second")
    await settled()
    await bench.lane.stop()
    assert bench.process.stopped
    for request in (first, second):
        with pytest.raises(asyncio.CancelledError):
            await request.task
    assert bench.process.begun == ["first"]
