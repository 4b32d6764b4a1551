from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from lipt.common.errors import BudgetError, ComputeError
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.messages import DroppedError
from lipt.coordinator.compute.progress import Progressed
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.compute.thread import ComputeThread
from tests.digits import digits_settings


@dataclass(frozen=True)
class WhoRan:
    """Reports once, and answers with where it ran."""

    def run(self, context: Context) -> tuple[int, str]:
        context.report("looking", 1, 2)
        return os.getpid(), threading.current_thread().name


@dataclass(frozen=True)
class Fail:
    error: Exception

    def run(self, context: Context) -> None:
        raise self.error


@dataclass(frozen=True)
class GoOnSaying:
    """Is never done, and says so."""

    def run(self, context: Context) -> None:
        while True:
            context.report("working", 0, 0)
            Event().wait(0.01)


@asynccontextmanager
async def compute_thread(state_dir: Path) -> AsyncIterator[ComputeThread]:
    place = ComputeThread(partial(Context, digits_settings(state_dir)), memory_bytes=2**36)
    try:
        yield place
    finally:
        place.stop()


async def test_jobs_run_in_one_thread_of_this_process(tmp_path: Path) -> None:
    told: list[Progressed] = []
    async with compute_thread(tmp_path) as place:
        answers = {await place.run(WhoRan(), told.append) for _ in range(2)}
        await asyncio.sleep(0)
    assert answers == {(os.getpid(), "lipt-compute_0")}
    assert told == [Progressed("looking", 1, 2)] * 2


async def test_a_refusal_is_raised_as_it_is(tmp_path: Path) -> None:
    async with compute_thread(tmp_path) as place:
        with pytest.raises(BudgetError, match="budget 0"):
            await place.run(Fail(BudgetError("budget 0 is outside 1..10.")))


async def test_what_nobody_foresaw_is_explained_and_the_next_job_runs(tmp_path: Path) -> None:
    async with compute_thread(tmp_path) as place:
        with pytest.raises(ComputeError, match="Fail failed: ZeroDivisionError: by zero"):
            await place.run(Fail(ZeroDivisionError("by zero")))
        assert (await place.run(WhoRan()))[0] == os.getpid()


async def test_a_dropped_job_ends_and_the_next_one_runs(tmp_path: Path) -> None:
    async with compute_thread(tmp_path) as place:
        saying = asyncio.Event()
        working = asyncio.create_task(place.run(GoOnSaying(), lambda _: saying.set()))
        await saying.wait()
        place.drop()
        with pytest.raises(DroppedError):
            await working
        assert (await place.run(WhoRan()))[0] == os.getpid()


async def test_who_stops_waiting_waits_until_the_job_has_ended(tmp_path: Path) -> None:
    async with compute_thread(tmp_path) as place:
        saying = asyncio.Event()
        working = asyncio.create_task(place.run(GoOnSaying(), lambda _: saying.set()))
        await saying.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert (await place.run(WhoRan()))[0] == os.getpid()


async def test_nothing_runs_after_the_end(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    async with compute_thread(tmp_path) as place:
        await place.run(WhoRan())
    with pytest.raises(ComputeError, match="the coordinator is stopping"):
        await place.run(WhoRan())
    begun = set(threading.enumerate()) - before
    assert not [one for one in begun if one.name.startswith("lipt-compute")]


async def test_a_queue_of_this_process_has_one_lane(tmp_path: Path) -> None:
    queue = ComputeQueue(digits_settings(tmp_path), in_this_process=True)
    try:
        assert (await queue.run(WhoRan()))[0] == os.getpid()
        queue.warm()
        assert queue.waiting() == {"cheap": 0, "dear": 0}
    finally:
        await queue.stop()
