"""Compute thread: what a compute process is, in this process, for a coordinator in a program.

A user's script has no guard against being imported again, and a notebook has no file to import,
so that an embedded coordinator cannot spawn a process. Jobs, their order and their results are
the same; there is no limit of memory, and a job that is dropped ends where it next says how far
it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lipt.common.errors import ComputeError
from lipt.coordinator.compute.child import OpenContext, carry_out
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.messages import (
    DroppedError,
    Failed,
    Finished,
    Job,
    Unfinished,
    outcome_of,
)
from lipt.coordinator.compute.progress import OnProgress, Progressed

ResultT = TypeVar("ResultT")


class ComputeThread:
    """Runs one job after another in a thread; safe to use from one event loop."""

    def __init__(
        self, open_context: OpenContext, *, memory_bytes: int, name: str = "lipt-compute"
    ) -> None:
        """Begin without a context; the first job opens it.

        Args:
            open_context: makes what jobs are given.
            memory_bytes: what they may take, for what is said of one that finds no memory.
            name: of the thread.
        """
        self._open_context = open_context
        self._memory_bytes = memory_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._context: Context | None = None
        self._dropped = self._stopped = False
        self._tell: Callable[[Progressed], object] = lambda _: None

    async def run(self, job: Job[ResultT], on_progress: OnProgress = lambda _: None) -> ResultT:
        """The job's result; one job at a time.

        Args:
            job: a frozen value with a `run` method.
            on_progress: called in the event loop.

        Raises:
            LiptError: what the job raised.
            OutOfMemoryError: the job found no memory.
            ComputeError: it failed in a way that nobody foresaw, or the thread was stopped.
            DroppedError: it was dropped, and has ended.
        """
        loop = asyncio.get_running_loop()
        self._tell = lambda progressed: loop.call_soon_threadsafe(on_progress, progressed)
        try:
            if self._stopped:
                raise ComputeError("nothing is computed any more: the coordinator is stopping.")
            if self._dropped:  # before it began
                raise DroppedError
            working = loop.run_in_executor(self._thread, self._carry_out, job)
            try:
                return outcome_of(await asyncio.shield(working), job)
            except asyncio.CancelledError:
                # Nobody can end a thread: whoever stops waiting waits until it has noticed.
                self._dropped = True
                await asyncio.wait({working})
                raise
        finally:
            self._dropped = False

    @property
    def pid(self) -> int | None:
        """None: it has no process of its own."""
        return None

    def drop(self) -> None:
        """Have the job given up that is under way, or about to be: its `run` raises before long."""
        self._dropped = True

    def start(self) -> None:
        """Be there before the first job: it is."""

    def stop(self) -> None:
        """End the thread, for good, once its job has noticed."""
        self._stopped = self._dropped = True
        self._thread.shutdown()

    def _carry_out(self, job: Job[ResultT]) -> Finished | Failed | Unfinished:
        if self._context is None:
            self._context = self._open_context(self._report)
        return carry_out(job, self._context, self._memory_bytes)

    def _report(self, progressed: Progressed) -> None:
        if self._dropped:
            raise DroppedError
        self._tell(progressed)
