import asyncio
import importlib.util
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from lipt.common.errors import BudgetError, ComputeError, OutOfMemoryError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.process import STOP_SIGNALS
from lipt.coordinator.compute import children, process
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.messages import DroppedError, News, Progressed
from lipt.coordinator.compute.process import ComputeProcess
from tests import processes
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
    def run(self, context: Context) -> None:
        context.report("hanging", 0, 1)
        signal.pause()


@dataclass(frozen=True)
class GoOnSaying:
    """Is never done, and says so; no `except Exception` of a job keeps it from being given up."""

    def run(self, context: Context) -> None:
        while True:
            with suppress(Exception):
                context.report("working", 0, 0)
            Event().wait(0.01)


@dataclass(frozen=True)
class Take:
    """Asks for memory that it never writes to."""

    num_bytes: int
    of_numpy: bool = False

    def run(self, context: Context) -> int:
        if self.of_numpy:
            return len(np.empty(self.num_bytes, np.uint8))
        return len(torch.empty(self.num_bytes, dtype=torch.uint8))


@pytest.fixture
def events() -> Events:
    return Events()


def compute_process(state_dir: Path, events: Events, **options: Any) -> ComputeProcess:
    open_context = partial(Context, digits_settings(state_dir))
    return ComputeProcess(open_context, events, **{"memory_bytes": 2**36, **options})


@pytest.fixture
async def compute(tmp_path: Path, events: Events) -> AsyncIterator[ComputeProcess]:
    process = compute_process(tmp_path, events)
    yield process
    process.stop()
    with pytest.raises(ComputeError, match="the coordinator is stopping"):
        await process.run(Square(1))


async def test_jobs_run_in_one_lasting_child_process(compute: ComputeProcess) -> None:
    said: list[News] = []
    first, pid = await compute.run(Square(3), said.append)
    with pytest.raises(BudgetError, match=r"budget 0 is outside 1\.\.10\."):
        await compute.run(Refuse())
    second, same = await compute.run(Square(4))
    assert (first, second) == (9, 16)
    assert said == [Progressed("squaring", 1, 2)]
    assert pid == same != os.getpid()


async def test_a_job_whose_child_is_killed_is_repeated_twice(
    compute: ComputeProcess, events: Events, tmp_path: Path
) -> None:
    _, before = await compute.run(Square(5))
    assert await compute.run(Die(tmp_path / "two", times=2)) != before
    assert events.count(EventKind.RETRIED, "compute") == 2
    deaths = tmp_path / "deaths"
    with pytest.raises(
        ComputeError, match=r"SIGKILL during Die, at attempt 3 of 3.* memory is short"
    ):
        await compute.run(Die(deaths, times=100))
    assert deaths.stat().st_size == 3
    assert events.count(EventKind.RETRIED, "compute") == 4
    assert (await compute.run(Square(5)))[0] == 25


async def test_a_job_above_the_memory_limit_fails_at_once_with_the_sizes(
    events: Events, tmp_path: Path
) -> None:
    small = compute_process(tmp_path, events, memory_bytes=1_600_000_000)
    _, pid = await small.run(Square(1))
    for of_numpy, kind in ((False, "RuntimeError"), (True, "MemoryError")):
        with pytest.raises(OutOfMemoryError) as refused:
            await small.run(Take(4 * 2**30, of_numpy))
        sentence = str(refused.value)
        assert f"Take ran out of memory: {kind}: " in sentence
        assert "may take 1.6 GB (limits.compute_memory)" in sentence
        assert "--compute-memory" in sentence
    assert events.count(EventKind.RETRIED) == 0
    # It was refused, and not killed.
    assert (await small.run(Square(2)))[1] == pid
    small.stop()


async def test_a_job_killed_for_memory_is_not_repeated(
    compute: ComputeProcess, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = iter(range(100))
    monkeypatch.setattr(process, "system_kills", lambda: next(kills))
    with pytest.raises(OutOfMemoryError, match=r"the system killed its process \(by SIGKILL\)"):
        await compute.run(Die(tmp_path / "deaths", times=1))
    assert (tmp_path / "deaths").stat().st_size == 1
    assert events.count(EventKind.RETRIED) == 0


def test_the_kernel_counts_kills_for_memory(tmp_path: Path) -> None:
    assert process.system_kills(proc=tmp_path) == 0
    (tmp_path / "vmstat").write_text("pgfault 123\noom_kill 4\n")
    assert process.system_kills(proc=tmp_path) == 4


async def test_a_stopped_process_starts_no_child(compute: ComputeProcess, events: Events) -> None:
    hanging = asyncio.Event()
    job = asyncio.create_task(compute.run(HangAfterSaying(), lambda _: hanging.set()))
    await hanging.wait()
    compute.stop()
    with pytest.raises(ComputeError, match="attempt 1 of 3"):
        await job
    assert events.count(EventKind.RETRIED) == 0
    assert compute._child is None


async def test_cancelled_job_leaves_no_child_behind(compute: ComputeProcess) -> None:
    for value in (6, 7):
        hanging = asyncio.Event()
        task = asyncio.create_task(compute.run(HangAfterSaying(), lambda _: hanging.set()))  # noqa: B023
        await hanging.wait()
        child = compute._child
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert child is not None
        assert not child.is_alive()
        assert (await compute.run(Square(value)))[0] == value**2


async def test_a_dropped_job_that_reports_progress_ends_without_killing_its_child(
    compute: ComputeProcess, events: Events, tmp_path: Path
) -> None:
    _, pid = await compute.run(Square(1))
    with pytest.raises(DroppedError):
        await compute.run(GoOnSaying(), lambda _: compute.drop())
    assert await compute.run(Square(3)) == (9, pid)
    # One that is dropped before it begins is not begun.
    compute.drop()
    with pytest.raises(DroppedError):
        await compute.run(Die(tmp_path / "deaths", times=1))
    assert not (tmp_path / "deaths").exists()
    assert await compute.run(Square(3)) == (9, pid)
    assert events.count(EventKind.RETRIED) == 0


async def test_a_silent_dropped_job_s_child_is_killed_and_the_job_not_repeated(
    events: Events, tmp_path: Path
) -> None:
    process = compute_process(tmp_path, events, patience_seconds=0.05)
    _, pid = await process.run(Square(1))
    with pytest.raises(DroppedError):
        await process.run(HangAfterSaying(), lambda _: process.drop())
    square, other = await process.run(Square(3))
    assert (square, other != pid) == (9, True)
    assert events.count(EventKind.RETRIED) == 0
    process.stop()


async def test_a_late_stop_does_not_end_the_next_job(compute: ComputeProcess) -> None:
    for value in range(10):
        # It reports once, and has most likely ended when it would hear of it.
        with suppress(DroppedError):
            await compute.run(Square(value), lambda _: compute.drop())
        assert (await compute.run(Square(value)))[0] == value**2


async def test_signals_to_the_process_group_do_not_end_a_child_that_is_still_importing(
    compute: ComputeProcess,
) -> None:
    compute.start()
    child = compute._child
    assert child is not None
    assert child.pid is not None
    for number in STOP_SIGNALS:
        os.kill(child.pid, number)
    assert await compute.run(Square(3)) == (9, child.pid)
    # Nor was anything left blocked here.
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


SCRIPT = """
import tempfile
from lipt.coordinator.compute import children, process
children._PRELOADED.clear()
before = tempfile.gettempdir()
children.start_server()
assert tempfile.gettempdir() == before
"""


@pytest.mark.slow
def test_the_server_starts_with_a_temporary_folder_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("a-batch-job-s-own" * 5)
    folder.mkdir()
    ended = processes.run(["-c", SCRIPT], {**os.environ, "TMPDIR": str(folder)})
    assert ended.returncode == 0, ended.stderr


def test_all_preloaded_modules_exist() -> None:
    # The server passes over a module that it does not find.
    assert [name for name in children._PRELOADED if not importlib.util.find_spec(name)] == []
