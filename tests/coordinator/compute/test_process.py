from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from lipt.common.errors import BudgetError, ComputeError, OutOfMemoryError
from lipt.common.observability.events import EventKind, Events
from lipt.coordinator.compute import process
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.memory import MemoryWatch
from lipt.coordinator.compute.process import ComputeProcess
from tests.digits import digits_settings


@dataclass(frozen=True)
class Square:
    """Reports once, and answers with the process that computed it."""

    value: int

    def run(self, context: Context) -> tuple[int, int]:
        context.report("squaring", 1, 2)
        return self.value**2, os.getpid()


@dataclass(frozen=True)
class Refuse:
    def run(self, context: Context) -> None:
        raise BudgetError("budget 0 is outside 1..10.")


@dataclass(frozen=True)
class Break:
    def run(self, context: Context) -> None:
        raise ZeroDivisionError("by zero")


@dataclass(frozen=True)
class Die:
    """Ends its process, so often; a file counts."""

    path: Path
    times: int

    def run(self, context: Context) -> int:
        with self.path.open("a") as file:
            file.write("x")
        if self.path.stat().st_size <= self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()


@dataclass(frozen=True)
class HangAfterSaying:
    path: Path

    def run(self, context: Context) -> None:
        context.report("hanging", 0, 1)
        signal.pause()


@dataclass(frozen=True)
class Take:
    """Asks for memory that it never writes to."""

    num_bytes: int

    def run(self, context: Context) -> int:
        return len(torch.empty(self.num_bytes, dtype=torch.uint8))


@dataclass(frozen=True)
class TakeAll:
    """Takes nearly all that it may, says so, and goes on."""

    path: Path

    def run(self, context: Context) -> None:
        with self.path.open("a") as file:
            file.write("x")
        taken = []
        with contextlib.suppress(RuntimeError):
            while True:
                taken.append(torch.empty(2**24, dtype=torch.uint8))
        context.report("full", len(taken), 0)
        signal.pause()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def compute(tmp_path: Path, events: Events) -> AsyncIterator[ComputeProcess]:
    compute = ComputeProcess(digits_settings(tmp_path), events)
    yield compute
    compute.stop()


@pytest.fixture
async def small(tmp_path: Path, events: Events) -> AsyncIterator[ComputeProcess]:
    """One that may take no more than 1.6 GB."""
    settings = digits_settings(tmp_path, limits={"compute_memory": "1600MB"})
    compute = ComputeProcess(settings, events)
    yield compute
    compute.stop()


async def test_job_runs_in_a_process_of_its_own_that_stays(compute: ComputeProcess) -> None:
    said: list[tuple[str, int, int]] = []
    first, pid = await compute.run(Square(3), lambda *progress: said.append(progress))
    second, same = await compute.run(Square(4))
    assert (first, second) == (9, 16)
    assert said == [("squaring", 1, 2)]
    assert pid == same != os.getpid()


async def test_refusal_arrives_as_its_own_class(compute: ComputeProcess) -> None:
    with pytest.raises(BudgetError, match=r"budget 0 is outside 1\.\.10\."):
        await compute.run(Refuse())


async def test_unforeseen_error_names_the_job_and_the_child_lives_on(
    compute: ComputeProcess,
) -> None:
    _, pid = await compute.run(Square(1))
    with pytest.raises(ComputeError, match="Break failed: ZeroDivisionError: by zero"):
        await compute.run(Break())
    assert (await compute.run(Square(2)))[1] == pid


async def test_job_whose_child_is_killed_is_done_again_by_another(
    compute: ComputeProcess, events: Events, tmp_path: Path
) -> None:
    _, before = await compute.run(Square(5))
    assert await compute.run(Die(tmp_path / "deaths", times=2)) != before
    assert events.count(EventKind.RETRIED, "compute") == 2


async def test_job_that_kills_its_child_each_time_is_an_error_and_the_next_has_a_new_one(
    compute: ComputeProcess, events: Events, tmp_path: Path
) -> None:
    deaths = tmp_path / "deaths"
    why = r"SIGKILL during Die, at attempt 3 of 3"
    with pytest.raises(ComputeError, match=why):
        await compute.run(Die(deaths, times=100))
    assert deaths.stat().st_size == 3
    assert events.count(EventKind.RETRIED, "compute") == 2
    assert (await compute.run(Square(5)))[0] == 25


async def test_job_that_asks_for_more_memory_than_allowed_fails_once_with_the_figures(
    small: ComputeProcess, events: Events
) -> None:
    _, pid = await small.run(Square(1))
    with pytest.raises(OutOfMemoryError) as refused:
        await small.run(Take(4 * 2**30))
    sentence = str(refused.value)
    assert "Take ran out of memory: RuntimeError: " in sentence
    assert "may take 1.6 GB (limits.compute_memory)" in sentence
    assert "--compute-memory" in sentence
    assert events.count(EventKind.RETRIED) == 0
    # It was refused, and not killed.
    assert (await small.run(Square(2)))[1] == pid


async def test_job_whose_child_ends_at_its_limit_is_not_done_again(
    small: ComputeProcess, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = asyncio.Event()

    class Watch(MemoryWatch):
        def look(self) -> None:
            super().look()
            # As a library ends a process that is refused memory.
            if full.is_set() and small._child is not None and small._child.pid is not None:
                os.kill(small._child.pid, signal.SIGUSR1)

    monkeypatch.setattr(process, "MemoryWatch", Watch)
    with pytest.raises(OutOfMemoryError, match=r"ended by SIGUSR1; it had .*, this machine has"):
        await small.run(TakeAll(tmp_path / "deaths"), lambda *_: full.set())
    assert (tmp_path / "deaths").stat().st_size == 1
    assert events.count(EventKind.RETRIED) == 0


async def test_no_child_is_started_once_it_is_stopped(
    compute: ComputeProcess, events: Events, tmp_path: Path
) -> None:
    hanging = asyncio.Event()
    job = asyncio.create_task(compute.run(HangAfterSaying(tmp_path), lambda *_: hanging.set()))
    await hanging.wait()
    compute.stop()
    with pytest.raises(ComputeError, match="attempt 1 of 3"):
        await job
    assert events.count(EventKind.RETRIED) == 0
    assert compute._child is None


async def test_cancelled_job_gives_way_to_the_next(compute: ComputeProcess, tmp_path: Path) -> None:
    for value in (6, 7, 8):
        hanging = asyncio.Event()
        said = hanging.set
        task = asyncio.create_task(
            compute.run(HangAfterSaying(tmp_path), lambda *_, said=said: said())
        )
        await hanging.wait()
        waiting = asyncio.create_task(compute.run(Square(value)))
        task.cancel()
        assert (await waiting)[0] == value**2
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_signals_to_the_process_group_do_not_end_a_child_that_is_still_importing(
    compute: ComputeProcess,
) -> None:
    compute._started()
    child = compute._child
    assert child is not None
    assert child.pid is not None
    os.kill(child.pid, signal.SIGTERM)
    os.kill(child.pid, signal.SIGINT)
    assert await compute.run(Square(3)) == (9, child.pid)
    # Nor was anything left blocked here.
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
