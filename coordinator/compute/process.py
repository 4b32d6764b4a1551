"""Compute process: a child that runs one job at a time, and its side in the event loop.

A job whose child was killed is repeated in a new one: jobs only read what is stored, and give the
same result however often they run. A job that ran out of memory is not repeated. A dropped job is
told when it reports its progress; if it goes on for too long, its child is killed.
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
from dataclasses import dataclass
from multiprocessing import Pipe, connection, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from lipt.common.errors import ComputeError, LiptError, OutOfMemoryError
from lipt.common.observability.logs import EventKind, Events, configure_logging
from lipt.common.observability.tracing import exporting
from lipt.common.process.devices import go_first_without_memory, is_out_of_memory, limit_memory
from lipt.common.process.machine import this_machine
from lipt.common.text import format_bytes
from lipt.coordinator.compute.children import IGNORED_SIGNALS, start_child
from lipt.coordinator.compute.context import Context, Report
from lipt.coordinator.compute.messages import (
    DroppedError,
    Failed,
    Finished,
    Job,
    TooDearError,
    name_of,
)
from lipt.coordinator.compute.progress import OnProgress, Progressed

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
MessageT = TypeVar("MessageT")
# Makes what jobs are given; travels to the child by pickle, before the first job.
OpenContext = Callable[[Report], Context]

# A job is given up after its child has died so often.
_MAX_DEATHS = 3
# A dropped job may go on for so long: a new child has to open the data again.
_PATIENCE_SECONDS = 5.0
# The child's memory is read so often, so that its end can be explained.
_LOOK_SECONDS = 0.2
# A child with this share of its limit at the last look ended for memory.
_NEARLY = 0.9
# A killed child with this share of the machine's memory did so, too.
_LARGE = 0.5

_PROC = Path("/proc")


def serve(pipe: Connection, memory_bytes: int) -> None:
    """Run jobs in the child until the parent closes the pipe or is gone.

    The parent sends an `OpenContext`, then jobs; None gives up the present one.
    """
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Blocked since before the fork, which a child of this process must not inherit.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    go_first_without_memory()

    def report(progressed: Progressed) -> None:
        if pipe.poll():  # nothing but the word to stop is sent while a job runs
            pipe.recv()
            raise DroppedError
        pipe.send(progressed)

    with suppress(EOFError):
        open_context: OpenContext = pipe.recv()
        context = open_context(report)
        configure_logging(context.settings.log_level, context.settings.log_format)
        # A missing device is a job's error.
        with suppress(LiptError):
            # The driver of a CUDA device maps far more than is used.
            if context.device.type == "cpu":
                limit_memory(memory_bytes)
        with exporting("lipt-compute"):
            while True:
                job = pipe.recv()
                if job is not None:  # the word to stop may come too late for its job
                    pipe.send(carry_out(job, context, memory_bytes))


def carry_out(job: Job[object], context: Context, memory_bytes: int) -> Finished | Failed:
    """Run a job and answer in any case; `memory_bytes` is named where it ran out of memory."""
    try:
        return Finished(job.run(context))
    except (DroppedError, TooDearError) as ended:
        return Failed(type(ended)())
    except Exception as error:  # noqa: BLE001 - the outermost frame of a job
        if is_out_of_memory(error):
            why = f"{type(error).__name__}: {error}".strip(": ")
            refusal = _out_of_memory(job, why, limit_bytes=memory_bytes)
            return Failed(refusal, traceback.format_exc())
        if isinstance(error, LiptError):
            return Failed(error)
        why = f"{name_of(job)} failed: {type(error).__name__}: {error}"
        return Failed(ComputeError(why), traceback.format_exc())


def outcome_of(message: Finished | Failed, job: Job[ResultT]) -> ResultT:
    """A job's result; its error is raised, and logged where it was unforeseen."""
    if isinstance(message, Finished):
        result: ResultT = message.result
        return result
    for line in message.traceback.splitlines():
        logger.error("%s: %s", name_of(job), line)
    raise message.error


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _out_of_memory(job: Job[Any], why: str, *, limit_bytes: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"{name_of(job)} ran out of memory: {why}. The compute process may take "
        f"{format_bytes(limit_bytes)} (limits.compute_memory): choose a smaller model, "
        "validation.fraction or strategy, or give it more with --compute-memory."
    )


class ComputeProcess:
    """Runs one job after another in the child; safe to use from one event loop."""

    def __init__(
        self,
        open_context: OpenContext,
        events: Events | None = None,
        *,
        memory_bytes: int,
        name: str = "lipt-compute",
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        """Begin without a child; a dropped job may go on for `patience_seconds`."""
        self._open_context = open_context
        self._events = events or Events()
        self._memory_bytes = memory_bytes
        self._name = name
        self._patience_seconds = patience_seconds
        self._stopped = self._dropped = False
        self._killing: asyncio.TimerHandle | None = None
        self._child: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._opening: Future[None] | None = None
        self._watch = MemoryWatch(0)
        # Its own thread: hashing and writing elsewhere must not delay the pipe.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, job: Job[ResultT], on_progress: OnProgress = lambda _: None) -> ResultT:
        """The job's result; one job at a time. It travels by pickle, to the own child only.

        Raises:
            LiptError: what the job raised; OutOfMemoryError where the child had too little memory.
            ComputeError: a child ended without an answer, each time.
            DroppedError, TooDearError: it was dropped, or needs more than this child has.
        """
        try:
            if self._dropped:  # before it began
                raise DroppedError
            return await self._run(job, on_progress)
        finally:
            self._dropped = False
            if self._killing is not None:
                self._killing.cancel()

    @property
    def pid(self) -> int | None:
        """The child's; None where there is none now."""
        return self._child.pid if self._child is not None else None

    def drop(self) -> None:
        """Have the present job, or the next one, given up: its `run` raises before long."""
        child, self._dropped = self._child, True
        if child is not None:
            later = asyncio.get_running_loop().call_later
            self._killing = later(self._patience_seconds, child.kill)

    def start(self) -> Connection:
        """Start a child where there is none; its pipe."""
        if self._stopped:
            raise ComputeError("nothing is computed any more: the coordinator is stopping.")
        if self._pipe is None or self._child is None or not self._child.is_alive():
            self._end_child()
            self._pipe, theirs = Pipe()
            self._child = start_child(serve, (theirs, self._memory_bytes), self._name)
            theirs.close()
            # It may be more than a pipe holds, and the child reads nothing while it is importing.
            self._opening = self._thread.submit(self._pipe.send, self._open_context)
        return self._pipe

    def stop(self) -> None:
        """End the child now, for good; whatever it was doing is lost."""
        self._stopped = True
        self._end_child()

    async def _run(self, job: Job[ResultT], on_progress: OnProgress) -> ResultT:
        for attempt in range(1, _MAX_DEATHS + 1):
            pipe = self.start()
            self._watch = MemoryWatch(self.pid or 0)
            try:
                return await self._ask(pipe, job, on_progress)
            except (EOFError, OSError):
                how = self._death(job, self._watch.seen())
            if self._dropped:
                raise DroppedError
            if attempt == _MAX_DEATHS or self._stopped:
                break
            self._events.record(
                EventKind.RETRIED,
                detail="compute",
                level=logging.WARNING,
                job=name_of(job),
                reason=f"its process ended {how}",
            )
        raise ComputeError(
            f"the compute process ended {how} during {name_of(job)}, at attempt {attempt} of "
            f"{_MAX_DEATHS}; see the log. The next job starts a new one."
        )

    async def _ask(self, pipe: Connection, job: Job[ResultT], on_progress: OnProgress) -> ResultT:
        await self._in_thread(lambda: pipe.send(job))
        told = False
        while True:
            message: Progressed | Finished | Failed = await self._in_thread(pipe.recv)
            if not isinstance(message, Progressed):
                return outcome_of(message, job)
            if self._dropped and not told:
                # A job that reports has read all that was sent: this never waits.
                pipe.send(None)
                told = True
            on_progress(message)

    async def _in_thread(self, action: Callable[[], MessageT]) -> MessageT:
        """Use the pipe in the thread, and watch the child; when cancelled, end the child first.

        The thread sees the end of the pipe then, and is waited for: were the pipe closed
        under it, it could read from whatever gets the pipe's number next.
        """
        acting = asyncio.get_running_loop().run_in_executor(self._thread, action)
        try:
            while not acting.done():
                self._watch.look()
                await asyncio.wait({acting}, timeout=_LOOK_SECONDS)
            return acting.result()
        except asyncio.CancelledError:
            if self._child is not None:
                self._child.kill()
            await asyncio.wait({acting})
            if not acting.cancelled():
                acting.exception()  # the end of the pipe, as it should be
            self._end_child()
            raise

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.join()
        if self._opening is not None:
            wait([self._opening])  # its thread has seen the end of the child
        if self._pipe is not None:
            self._pipe.close()
        self._child = self._pipe = self._opening = None

    def _death(self, job: Job[Any], seen: Seen) -> str:
        """How the child has ended; raises OutOfMemoryError where that was for want of memory."""
        code = None
        if self._child is not None:
            self._child.join(timeout=5.0)
            code = self._child.exitcode
        self._end_child()
        if code is None:
            how = "without a word"
        else:
            how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        # A child that this process has ended did not end for memory, however large it was.
        by_us = self._dropped or self._stopped
        limit, machine = self._memory_bytes, this_machine().memory_bytes
        if not by_us and ended_for_memory(code, seen, limit_bytes=limit, machine_bytes=machine):
            had, there_is = format_bytes(seen.resident_bytes), format_bytes(machine)
            why = f"its process ended {how}; it had {had}, this machine has {there_is}"
            raise _out_of_memory(job, why, limit_bytes=limit)
        return how


@dataclass(frozen=True)
class Resident:
    """A process's memory now, and the most that it had."""

    now_bytes: int
    peak_bytes: int


def resident(pid: int, *, proc: Path = _PROC) -> Resident | None:
    """The memory of a process; None where it is gone."""
    try:
        status = (proc / str(pid) / "status").read_text()
    except OSError:
        return None
    return Resident(_kilobytes("VmRSS", status), _kilobytes("VmHWM", status))


@dataclass(frozen=True)
class Seen:
    """A process's largest memory, in all and of its limit; and the system's kills meanwhile."""

    resident_bytes: int = 0
    data_bytes: int = 0
    kills: int = 0


class MemoryWatch:
    """Reads the memory of one process as long as it exists."""

    def __init__(self, pid: int, *, proc: Path = _PROC) -> None:
        self._status = proc / str(pid) / "status"
        self._counters = proc / "vmstat"
        self._kills_before = self._kills()
        self._resident_bytes = self._data_bytes = 0

    def look(self) -> None:
        """Read it now; harmless when the process is gone."""
        with suppress(OSError):
            status = self._status.read_text()
            self._resident_bytes = max(self._resident_bytes, _kilobytes("VmHWM", status))
            self._data_bytes = max(self._data_bytes, _kilobytes("VmData", status))

    def seen(self) -> Seen:
        """All that was read."""
        kills = self._kills() - self._kills_before
        return Seen(self._resident_bytes, self._data_bytes, kills)

    def _kills(self) -> int:
        with suppress(OSError):
            if found := re.search(r"^oom_kill (\d+)", self._counters.read_text(), re.MULTILINE):
                return int(found[1])
        return 0


def ended_for_memory(
    exit_code: int | None, seen: Seen, *, limit_bytes: int, machine_bytes: int
) -> bool:
    """Whether memory is why a process has ended.

    The system counts its SIGKILLs; services that act before it kill large processes. Some libraries
    end their process in another way when they are refused memory.
    """
    if exit_code == -signal.SIGKILL:
        return seen.kills > 0 or seen.resident_bytes >= _LARGE * machine_bytes
    return seen.data_bytes >= _NEARLY * limit_bytes


def _kilobytes(name: str, status: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
