"""Compute process, as the event loop sees it.

One child, spawned (a fork of a process with threads and an event loop is a
trap), one job at a time in the order of asking. A cancelled job kills the
child; the next one starts another. A child that somebody else kills has its
job done again by a new one: jobs only read what is stored, and give the same
however often they run. One that ran out of memory has not: it would do so again.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from lipt.common.errors import ComputeError
from lipt.common.observability.events import EventKind, Events
from lipt.common.process.machine import this_machine
from lipt.common.sizes import format_bytes
from lipt.coordinator.compute.child import IGNORED_SIGNALS, serve
from lipt.coordinator.compute.memory import MemoryWatch, Seen, ended_for_memory, out_of_memory
from lipt.coordinator.compute.messages import Failed, Finished, Job, Progressed
from lipt.coordinator.settings import CoordinatorSettings, compute_memory_bytes

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
MessageT = TypeVar("MessageT")
Message = Progressed | Finished | Failed
OnProgress = Callable[[str, int, int], None]

# So often a job may end its child before it is given up.
_MAX_DEATHS = 3
# So often its memory is looked at: what it had at its end was there shortly before.
_LOOK_SECONDS = 0.2


class ComputeProcess:
    """Runs jobs in the child; safe to use from one event loop."""

    def __init__(self, settings: CoordinatorSettings, events: Events | None = None) -> None:
        """Begin without a child; the first job starts one.

        Args:
            settings: what the child needs to know.
            events: where a job that is done again is counted.
        """
        self._settings = settings
        self._machine = this_machine()
        self._memory_bytes = compute_memory_bytes(settings.limits, self._machine)
        self._events = events or Events()
        self._stopped = False
        self._turn = asyncio.Lock()
        self._child: SpawnProcess | None = None
        self._pipe: Connection | None = None

    async def run(self, job: Job[ResultT], on_progress: OnProgress = lambda *_: None) -> ResultT:
        """The job's result.

        Args:
            job: a frozen value with a `run` method; it travels by pickle between
                this process and its own child, never over the network.
            on_progress: called in the event loop with (activity, done, total).

        Raises:
            LiptError: what the job raised.
            OutOfMemoryError: the job needs more memory than the child may take, or there is.
            ComputeError: a child ended without an answer, each time.
        """
        async with self._turn:
            num_deaths = 0
            while True:
                pipe = self._started()
                with self._watching() as watch:
                    try:
                        return await self._ask(pipe, job, on_progress)
                    except (EOFError, OSError):
                        how = self._death(job, watch.seen())
                num_deaths += 1
                if num_deaths == _MAX_DEATHS or self._stopped:
                    raise ComputeError(
                        f"the compute process ended {how} during {type(job).__name__}, at "
                        f"attempt {num_deaths} of {_MAX_DEATHS}; see the log. The next job starts "
                        "a new one."
                    )
                self._events.record(
                    EventKind.RETRIED,
                    detail="compute",
                    level=logging.WARNING,
                    job=type(job).__name__,
                    reason=f"its process ended {how}",
                )

    @contextmanager
    def _watching(self) -> Iterator[MemoryWatch]:
        """Look at the child's memory now and then, for the case that it ends."""
        watch = MemoryWatch(self._child.pid if self._child and self._child.pid else 0)

        async def look() -> None:
            while True:
                watch.look()
                await asyncio.sleep(_LOOK_SECONDS)

        looking = asyncio.create_task(look())
        try:
            yield watch
        finally:
            looking.cancel()

    async def _ask(self, pipe: Connection, job: Job[ResultT], on_progress: OnProgress) -> ResultT:
        await self._in_thread(lambda: pipe.send(job))
        while True:
            message: Message = await self._in_thread(pipe.recv)
            if not isinstance(message, Progressed):
                return _outcome(message, job)
            on_progress(message.activity, message.done, message.total)

    async def _in_thread(self, action: Callable[[], MessageT]) -> MessageT:
        """Do something with the pipe; when that is cancelled, end the child first.

        The thread sees the end of the pipe then, and is waited for: were the pipe closed
        under it, it could read from whatever gets the pipe's number next.
        """
        acting = asyncio.get_running_loop().run_in_executor(None, action)
        try:
            return await asyncio.shield(acting)
        except asyncio.CancelledError:
            if self._child is not None:
                self._child.kill()
            await asyncio.wait({acting})
            if not acting.cancelled():
                acting.exception()  # the end of the pipe, as it should be
            self._end_child()
            raise

    def stop(self) -> None:
        """End the child now, for good; whatever it was doing is lost."""
        self._stopped = True
        self._end_child()

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.join()
        if self._pipe is not None:
            self._pipe.close()
        self._child = self._pipe = None

    def _started(self) -> Connection:
        if self._pipe is None or self._child is None or not self._child.is_alive():
            self._end_child()
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._child = context.Process(
                target=serve,
                args=(theirs, self._settings, self._memory_bytes),
                name="lipt-compute",
                daemon=True,
            )
            with _signals_blocked():
                self._child.start()
            theirs.close()
        return self._pipe

    def _death(self, job: Job[Any], seen: Seen) -> str:
        """How the child has ended.

        Raises:
            OutOfMemoryError: for want of memory.
        """
        child = self._child
        if child is not None:
            child.join(timeout=5.0)
        code = child.exitcode if child is not None else None
        self._end_child()
        limit, machine = self._memory_bytes, self._machine.memory_bytes
        if ended_for_memory(code, seen, limit_bytes=limit, machine_bytes=machine):
            had, there_is = format_bytes(seen.resident_bytes), format_bytes(machine)
            why = f"its process ended {_end(code)}; it had {had}, this machine has {there_is}"
            raise out_of_memory(type(job).__name__, why, limit_bytes=limit)
        return _end(code)


def _end(exit_code: int | None) -> str:
    if exit_code is None:
        return "without a word"
    if exit_code >= 0:
        return f"with exit code {exit_code}"
    return f"by {signal.Signals(-exit_code).name}"


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Let a child be deaf, from its first moment on, to what is sent to the whole process group.

    It begins with this thread's blocked signals, and ignores these once it is up.
    """
    # Python starts this helper with the first child, and unblocks them after that.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _outcome(message: Finished | Failed, job: Job[ResultT]) -> ResultT:
    if isinstance(message, Finished):
        result: ResultT = message.result
        return result
    if message.traceback:
        logger.error("%s failed:\n%s", type(job).__name__, message.traceback)
    raise message.error
