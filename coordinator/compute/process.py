"""Compute process: a child that runs one job at a time, and its event-loop side.

If the child is killed, a new one repeats the job with the same result, unless memory ran out. A
dropped job ends at its next report, or else its child is killed after a pause.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, TypeVar

from lipt.common.errors import ComputeError, LiptError, OutOfMemoryError
from lipt.common.observability.logs import Events, configure_logging
from lipt.common.observability.tracing import exporting
from lipt.common.process.devices import is_out_of_memory, limit_memory, prefer_as_oom_victim
from lipt.common.text import format_bytes
from lipt.coordinator.compute.children import IGNORED_SIGNALS, start_server
from lipt.coordinator.compute.context import Context, Report
from lipt.coordinator.compute.messages import (
    DroppedError,
    HeavyJobError,
    Job,
    JobEnded,
    News,
    name_of,
)

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
MessageT = TypeVar("MessageT")
# Creates the jobs' context; pickled and sent to the child before the first job.
OpenContext = Callable[[Report], Context]

# Attempts of a job whose child dies.
_MAX_DEATHS = 3
# Time for a dropped job to end by itself: a new child has to open the data again.
_PATIENCE_SECONDS = 5.0
_PROC = Path("/proc")
_KILLED = f"by {signal.SIGKILL.name}"


def serve(pipe: Connection, memory_bytes: int) -> None:
    """Run jobs in the child: the parent sends an `OpenContext`, then jobs, and None drops one."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Blocked since before the fork; children of this process must not inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prefer_as_oom_victim()

    def report(news: News) -> None:
        if pipe.poll():  # only a stop message is sent while a job runs
            pipe.recv()
            raise DroppedError
        pipe.send(news)

    with suppress(EOFError):
        open_context: OpenContext = pipe.recv()
        context = open_context(report)
        configure_logging(context.settings.log_level, context.settings.log_format)
        # A missing device is an error of the job.
        with suppress(LiptError):
            # A CUDA driver maps far more memory than it uses.
            if context.device.type == "cpu":
                limit_memory(memory_bytes)
        with exporting("lipt-compute"):
            while True:
                job = pipe.recv()
                if job is not None:  # a stop message may arrive after its job has ended
                    pipe.send(carry_out(job, context, memory_bytes))


def carry_out(job: Job[object], context: Context, memory_bytes: int) -> JobEnded:
    try:
        return JobEnded(job.run(context))
    except (DroppedError, HeavyJobError) as ended:
        return JobEnded(error=type(ended)())
    except Exception as error:  # noqa: BLE001 - the outermost frame of a job
        why = f"{type(error).__name__}: {error}".strip(": ")
        if is_out_of_memory(error):
            error = _out_of_memory(job, why, memory_bytes)
        elif isinstance(error, LiptError):
            return JobEnded(error=error)
        else:
            error = ComputeError(f"{name_of(job)} failed: {why}")
        return JobEnded(error=error, traceback=traceback.format_exc())


def outcome_of(message: JobEnded, job: Job[ResultT]) -> ResultT:
    """The job's result, or raise its error; unexpected errors are logged."""
    for line in message.traceback.splitlines():
        logger.error("%s: %s", name_of(job), line)
    if message.error is not None:
        raise message.error
    result: ResultT = message.result
    return result


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _out_of_memory(job: Job[object], why: str, limit_bytes: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"{name_of(job)} ran out of memory: {why}. The compute process may take "
        f"{format_bytes(limit_bytes)} (limits.compute_memory): choose a smaller model, "
        "validation.fraction or strategy, or give it more with --compute-memory."
    )


@dataclass(eq=False)
class ComputeProcess:
    """Runs one job after another in the child; safe to use from one event loop."""

    open_context: OpenContext
    events: Events
    memory_bytes: int
    name: str = "lipt-compute"
    patience_seconds: float = _PATIENCE_SECONDS
    _stopped: bool = field(default=False, init=False)
    _dropped: bool = field(default=False, init=False)
    _killing: asyncio.TimerHandle | None = field(default=None, init=False)
    _child: BaseProcess | None = field(default=None, init=False)
    _pipe: Connection | None = field(default=None, init=False)
    _opening: Future[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # A separate thread, so that hashing and writing elsewhere do not delay the pipe.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.name)

    async def run(self, job: Job[ResultT], on_news: Report = lambda _: None) -> ResultT:
        """Return the job's result; a ComputeError or OutOfMemoryError if children died."""
        try:
            if self._dropped:  # before it began
                raise DroppedError
            return await self._run(job, on_news)
        finally:
            self._dropped = False
            if self._killing is not None:
                self._killing.cancel()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def drop(self) -> None:
        """Cancel the current job, or else the next one; its `run` then raises."""
        child, self._dropped = self._child, True
        if child is not None:
            later = asyncio.get_running_loop().call_later
            self._killing = later(self.patience_seconds, child.kill)

    def start(self) -> Connection:
        if self._stopped:
            raise ComputeError("the coordinator is stopping: it runs no more jobs.")
        if self._pipe is None or self._child is None or not self._child.is_alive():
            self._end_child()
            self._pipe, theirs = Pipe()
            start_server()
            # Ends no later than this process.
            self._child = get_context("forkserver").Process(
                target=serve, args=(theirs, self.memory_bytes), name=self.name, daemon=True
            )
            self._child.start()
            theirs.close()
            # It may exceed the pipe's buffer, and the child reads nothing while it imports.
            self._opening = self._thread.submit(self._pipe.send, self.open_context)
        return self._pipe

    def stop(self) -> None:
        self._stopped = True
        self._end_child()

    async def _run(self, job: Job[ResultT], on_news: Report) -> ResultT:
        for attempt in range(1, _MAX_DEATHS + 1):
            pipe, kills = self.start(), system_kills()
            try:
                return await self._ask(pipe, job, on_news)
            except (EOFError, OSError):
                how = self._exit_reason()
            if self._dropped:
                raise DroppedError
            if how == _KILLED and system_kills() > kills and not self._stopped:
                why = f"the system killed its process ({how})"
                raise _out_of_memory(job, why, self.memory_bytes)
            if attempt == _MAX_DEATHS or self._stopped:
                break
            self.events.retried("compute", f"its process ended {how}", job=name_of(job))
        # The kernel's count does not show all kills of a container's own limit.
        why = "The system does so when memory is short (--compute-memory); the"
        raise ComputeError(
            f"the compute process ended {how} during {name_of(job)}, at attempt {attempt} of "
            f"{_MAX_DEATHS}; see the log. {why if how == _KILLED else 'The'} next job starts a new "
            "one."
        )

    async def _ask(self, pipe: Connection, job: Job[ResultT], on_news: Report) -> ResultT:
        await self._in_thread(lambda: pipe.send(job))
        stop_sent = False
        while True:
            message = await self._in_thread(pipe.recv)
            if isinstance(message, JobEnded):
                return outcome_of(message, job)
            if self._dropped and not stop_sent:
                # A reporting job has read all that was sent, so this never blocks.
                pipe.send(None)
                stop_sent = True
            on_news(message)

    async def _in_thread(self, action: Callable[[], MessageT]) -> MessageT:
        """Use the pipe in the thread; a cancelled caller ends the child, and so the thread."""
        acting = asyncio.get_running_loop().run_in_executor(self._thread, action)
        try:
            return await asyncio.shield(acting)
        except asyncio.CancelledError:
            if self._child is not None:
                self._child.kill()
            await asyncio.wait({acting})
            if not acting.cancelled():
                acting.exception()  # the expected end-of-file
            self._end_child()
            raise

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.join()
        if self._opening is not None:
            wait([self._opening])  # its thread has seen the child end
        if self._pipe is not None:
            self._pipe.close()
        self._child = self._pipe = self._opening = None

    def _exit_reason(self) -> str:
        code = None
        if self._child is not None:
            self._child.join(timeout=5.0)
            code = self._child.exitcode
        self._end_child()
        if code is None:
            return "for an unknown reason"
        return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"


class Resident(NamedTuple):
    """A process's current and peak memory."""

    now_bytes: int
    peak_bytes: int


def resident(pid: int, *, proc: Path = _PROC) -> Resident | None:
    """The memory of a process; None if it has ended."""
    try:
        status = (proc / str(pid) / "status").read_text()
    except OSError:
        return None
    kilobytes = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", status, re.MULTILINE))
    return Resident(*(int(kilobytes.get(name, 0)) * 1024 for name in ("VmRSS", "VmHWM")))


def system_kills(*, proc: Path = _PROC) -> int:
    """The number of processes killed by the kernel so far for lack of memory."""
    with suppress(OSError):
        if count := re.search(r"^oom_kill (\d+)", (proc / "vmstat").read_text(), re.MULTILINE):
            return int(count[1])
    return 0
