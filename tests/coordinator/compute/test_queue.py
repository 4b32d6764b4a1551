import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from lipt.common.errors import BudgetError, QueueFullError
from lipt.common.observability.logs import EventKind, Events, log_context, logging_about
from lipt.common.observability.metrics import Meters
from lipt.common.observability.tracing import current_traceparent, span
from lipt.coordinator.compute.context import Context, DataDescription
from lipt.coordinator.compute.messages import (
    DroppedError,
    HeavyJobError,
    JobOptions,
    News,
    Progressed,
    ScanClosed,
    ScanNews,
)
from lipt.coordinator.compute.process import ComputeProcess, OpenContext
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.compute.scan import ScanOpened
from lipt.coordinator.instruments import JOB, QUEUE_WAIT
from lipt.data.inputs.specs import ImageSpec
from tests.clock import Clock
from tests.digits import digits_settings
from tests.embedded import ThreadQueue
from tests.meters import observed
from tests.remembered_spans import remembering

KNOWN = DataDescription(
    "two", ("a", "b"), (1, 1), ImageSpec(1, 8, 8), "f" * 64, labels=b"\1\0\0\0\0\0\0\0"
)


class PlayedProcess:
    """Begins jobs, and ends each when the test says so."""

    pid = None

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.on_news: Callable[[News], None] = lambda _: None
        self.stopped = False
        self._end: asyncio.Future[Any] = asyncio.Future()

    async def run(self, job: Any, on_news: Callable[[News], None]) -> Any:
        self.begun.append(job.job)
        self.on_news = on_news
        self._end = asyncio.get_running_loop().create_future()
        return await self._end

    async def end(self, result: object = "done") -> None:
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
    for _ in range(6):
        await asyncio.sleep(0)


@dataclass(eq=False)
class Request:
    """A waiting caller and its reports."""

    task: asyncio.Task[Any]
    heard: list[Progressed]
    parts: list[object]

    @property
    def ahead(self) -> list[int]:
        return [progressed.ahead for progressed in self.heard]


class PlayedQueue(ComputeQueue):
    def __init__(self, state_dir: Path, clock: Clock, **limits: int) -> None:
        settings = digits_settings(state_dir)
        compute = settings.compute.model_copy(update=limits)
        self.played: list[PlayedProcess] = []
        super().__init__(
            settings.model_copy(update={"compute": compute}), Events(), Meters(), clock=clock
        )
        self.clock = clock

    def _process(self, open_context: OpenContext, name: str) -> ComputeProcess:
        self.played.append(PlayedProcess())
        return cast("ComputeProcess", cast("Any", self.played[-1]))

    @property
    def process(self) -> PlayedProcess:
        return self.played[0]

    @property
    def num_waiting(self) -> int:
        return sum(not one.computing for one in self.computations())

    @property
    def counted(self) -> Events:
        return self._events

    @property
    def measured(self) -> Meters:
        return self._meters

    def ask(
        self,
        job: str,
        caller: str | Callable[[], frozenset[str]] | None = "me",
        run: str = "r",
        *,
        light: bool = False,
    ) -> Request:
        callers = (lambda: frozenset({caller})) if isinstance(caller, str) else caller
        heard: list[Progressed] = []
        parts: list[object] = []
        options = JobOptions(run, callers, light, on_part=parts.append)
        job_: Any = job
        return Request(asyncio.create_task(self.run(job_, heard.append, options)), heard, parts)

    async def leave(self, *requests: Request) -> None:
        for request in requests:
            request.task.cancel()
        await asyncio.wait({request.task for request in requests})
        await settled()

    async def end_all(self) -> list[Any]:
        """End one job after another, each a second long; those that have begun so far."""
        while self._executors[0].present is not None:
            self.clock.now += 1.0
            await self.process.end()
        return self.process.begun


MakeQueue = Callable[..., PlayedQueue]


@pytest.fixture
async def make_queue(tmp_path: Path, clock: Clock) -> MakeQueue:
    return lambda **limits: PlayedQueue(tmp_path, clock, **limits)


@pytest.fixture
async def queue(make_queue: MakeQueue) -> PlayedQueue:
    return make_queue()


async def test_status_lists_the_running_job_then_queued_jobs_in_order(queue: PlayedQueue) -> None:
    first = queue.ask("first", run="r1")
    queue.ask("second", run="r2")
    queue.ask("third", caller=None, run="r3")
    await settled()
    queue.clock.now += 3.0
    queue.process.on_news(Progressed("squaring", 1, 2))
    # A part of a result is no progress.
    queue.process.on_news("a part")
    assert first.parts == ["a part"]
    seen = queue.computations()
    assert [(one.run, one.num_callers, one.computing) for one in seen] == [
        ("r1", 1, True),
        ("r3", 0, False),
        ("r2", 1, False),
    ]
    assert (seen[0].job, seen[0].queue, seen[0].seconds) == ("str", "heavy", 3.0)
    assert [one.progress.activity for one in seen] == ["squaring", *["waiting for its turn"] * 2]
    await queue.end_all()
    assert queue.computations() == ()


async def test_waiting_and_computing_are_measured_separately(queue: PlayedQueue) -> None:
    queue.ask("first")
    await settled()
    queue.clock.now += 2.0
    queue.ask("second")
    await settled()
    queue.clock.now += 3.0
    assert [one.seconds for one in queue.computations()] == [5.0, 3.0]
    await queue.end_all()  # the first after 6 s, the second, which waited 4 s, after 1 s
    assert observed(queue.measured, QUEUE_WAIT)["heavy",] == (2, 4.0)
    assert observed(queue.measured, JOB)["heavy", "str"] == (2, 7.0)


async def test_a_queued_job_reports_its_position_and_then_its_progress(queue: PlayedQueue) -> None:
    first, second, third = (queue.ask(job) for job in ("first", "second", "third"))
    await settled()
    assert (second.ahead, third.ahead) == ([1], [2])
    assert second.heard[0].activity == "waiting for its turn"
    await queue.process.end()
    queue.process.on_news(Progressed("squaring", 1, 2))
    await settled()
    assert [item.activity for item in second.heard[1:]] == ["beginning", "squaring"]
    assert second.ahead == [1, 0, 0]
    assert third.ahead == [2, 1]
    assert first.ahead == [0]
    await queue.end_all()


async def test_a_job_without_callers_is_dropped_before_the_next_begins(queue: PlayedQueue) -> None:
    first, second, third = (queue.ask(job) for job in ("first", "second", "third"))
    await settled()
    await queue.leave(second)
    assert third.ahead == [2, 1]
    assert queue.counted.count(EventKind.JOB_DROPPED, "waiting") == 1
    await queue.leave(first)
    assert queue.process.begun == ["first", "dropped"]
    # Its last reports go to no caller.
    queue.process.on_news(Progressed("squaring", 1, 2))
    assert first.ahead == [0]
    await queue.process.end(DroppedError())
    assert queue.process.begun == ["first", "dropped", "third"]
    await queue.process.end(2)
    assert await third.task == 2
    assert queue.counted.count(EventKind.JOB_DROPPED, "computing") == 1


async def test_callers_and_the_pipeline_take_turns(queue: PlayedQueue) -> None:
    for job in ("a1", "a2", "a3"):
        queue.ask(job, "a")
    for job in ("b1", "b2"):
        queue.ask(job, "b")
    queue.ask("run", None)
    await settled()
    assert await queue.end_all() == ["a1", "b1", "run", "a2", "b2", "a3"]


async def test_a_shared_job_runs_at_its_first_caller_s_turn(queue: PlayedQueue) -> None:
    queue.ask("under way", "flood")
    await settled()
    queue.ask("c1", "c")
    queue.ask("flood1", "flood")
    queue.ask("both", lambda: frozenset({"flood", "b"}))
    await settled()
    assert await queue.end_all() == ["under way", "c1", "both", "flood1"]


async def test_repeated_requests_do_not_overtake_waiting_callers(queue: PlayedQueue) -> None:
    queue.ask("under way", "a")
    await settled()
    for job in ("a1", "a2"):
        queue.ask(job, "a")
    for number in range(4):
        # As many others as there are turns, each new.
        queue.ask(f"new {number}", f"caller {number}")
        await settled()
        await queue.process.end()
    assert queue.process.begun == ["under way", "new 0", "a1", "new 1", "new 2"]
    assert "a2" in (await queue.end_all())[:7]
    assert set(queue._executors[0].ranks) <= {"a", "caller 2", "caller 3"}


async def test_a_job_without_callers_is_skipped_until_it_is_dropped(queue: PlayedQueue) -> None:
    callers = {"flood"}
    queue.ask("under way")
    abandoned = queue.ask("abandoned", lambda: frozenset(callers))
    queue.ask("next")
    await settled()
    callers.clear()
    assert await queue.end_all() == ["under way", "next"]
    await queue.leave(abandoned)


async def test_a_full_queue_refuses_with_a_retry_time(make_queue: MakeQueue) -> None:
    queue = make_queue(max_waiting=3, max_waiting_per_caller=2)
    under_way = queue.ask("under way", "a")
    kept = [queue.ask(f"a{number}", "a") for number in range(2)]
    await settled()
    queue.clock.now += 7.0
    refused = queue.ask("a2", "a")
    words = "2 requests of this caller are waiting, the maximum is 2. Ask again in 7 s."
    with pytest.raises(QueueFullError, match=words) as raised:
        await refused.task
    assert raised.value.retry_after_seconds == 7.0
    kept.append(queue.ask("b0", "b"))
    await settled()
    with pytest.raises(QueueFullError, match="3 requests are waiting, the maximum is 3"):
        await queue.ask("c0", "c").task
    # A run's own are never refused, nor do they take the place of others.
    kept += [queue.ask(f"run {number}", None) for number in range(5)]
    await settled()
    assert queue.num_waiting == 8
    # Who leaves makes room, whatever of a run waits.
    await queue.leave(kept[0])
    kept[0] = queue.ask("again", "a")
    await settled()
    await queue.end_all()
    assert {await request.task for request in (under_way, *kept)} == {"done"}


async def test_a_light_job_that_turns_out_heavy_moves_to_the_heavy_process(
    queue: PlayedQueue,
) -> None:
    queue.open_light(KNOWN)
    light = queue.played[1]
    heavy = queue.ask("heavy")
    first, second = (queue.ask(job, light=True) for job in ("first", "second"))
    await settled()
    assert (queue.process.begun, light.begun) == (["heavy"], ["first"])
    await light.end(HeavyJobError())
    assert light.begun == ["first", "second"]
    await light.end(2)
    assert await second.task == 2
    assert await queue.end_all() == ["heavy", "first"]
    assert heavy.task.done()
    assert await first.task == "done"


async def test_a_scan_left_open_by_a_job_is_closed(queue: PlayedQueue) -> None:
    news: list[ScanNews] = []
    queue.on_scan = news.append
    request = queue.ask("first")
    await settled()
    queue.process.on_news(ScanOpened("scan-1", cast("Any", None), frozenset(), cast("Any", None)))
    await queue.process.end(BudgetError("budget 0 is outside 1..10."))
    assert [type(one) for one in news] == [ScanOpened, ScanClosed]
    assert request.ahead == [0]
    with pytest.raises(BudgetError):
        await request.task


async def test_stopping_ends_the_process_and_all_waits(queue: PlayedQueue) -> None:
    first, second = queue.ask("first"), queue.ask("second")
    await settled()
    await queue.stop()
    assert queue.process.stopped
    for request in (first, second):
        with pytest.raises(asyncio.CancelledError):
            await request.task
    assert queue.process.begun == ["first"]


@dataclass(frozen=True)
class WhoseAmI:
    def run(self, context: Context) -> tuple[dict[str, str], str]:
        return dict(log_context()), current_traceparent()


async def test_a_job_is_a_span_of_its_request_s_trace(tmp_path: Path) -> None:
    async def asked(queue: ThreadQueue, run: str) -> tuple[dict[str, str], str]:
        with logging_about(run=run):
            found: tuple[dict[str, str], str] = await queue.run(WhoseAmI())
        return found

    queue = ThreadQueue(digits_settings(tmp_path))
    try:
        found = await asyncio.gather(*(asked(queue, run) for run in ("a", "b")))
        with remembering() as spans, span("stage"):
            _, within = await asked(queue, "c")
    finally:
        await queue.stop()
    assert [context for context, _ in found] == [{"run": "a"}, {"run": "b"}]
    job = spans["WhoseAmI"]
    assert job.parent is not None
    assert job.parent.span_id == spans["stage"].context.span_id
    assert within.split("-")[2] == f"{job.context.span_id:016x}"
