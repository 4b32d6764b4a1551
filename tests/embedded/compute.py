"""Compute queue whose jobs run in a thread of this process, all in one executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from lipt.common.errors import ComputeError
from lipt.coordinator.compute.context import Context, DataDescription, Report
from lipt.coordinator.compute.messages import (
    DroppedError,
    Ended,
    Job,
    News,
)
from lipt.coordinator.compute.process import ComputeProcess, OpenContext, carry_out, outcome_of
from lipt.coordinator.compute.queue import ComputeQueue

ResultT = TypeVar("ResultT")


class ThreadQueue(ComputeQueue):
    """A test's coordinator computes beside it: nothing is started, and nothing is imported anew."""

    def open_light(self, known: DataDescription) -> None:
        pass

    def _process(self, open_context: OpenContext, name: str) -> ComputeProcess:
        thread = ComputeThread(open_context, memory_bytes=self.memory_limit_bytes, name=name)
        return cast("ComputeProcess", cast("Any", thread))


class ComputeThread:
    """What `ComputeProcess` is, in a thread: a dropped job ends where it next reports."""

    pid = None

    def __init__(
        self, open_context: OpenContext, *, memory_bytes: int, name: str = "lipt-compute"
    ) -> None:
        self._open_context = open_context
        self._memory_bytes = memory_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._context: Context | None = None
        self._dropped = self._stopped = False
        self._tell: Callable[[News], object] = lambda _: None

    async def run(self, job: Job[ResultT], on_news: Report = lambda _: None) -> ResultT:
        loop = asyncio.get_running_loop()
        self._tell = lambda news: loop.call_soon_threadsafe(on_news, news)
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

    def drop(self) -> None:
        self._dropped = True

    def stop(self) -> None:
        self._stopped = self._dropped = True
        self._thread.shutdown()

    def _carry_out(self, job: Job[ResultT]) -> Ended:
        if self._context is None:
            self._context = self._open_context(self._report)
        return carry_out(job, self._context, self._memory_bytes)

    def _report(self, news: News) -> None:
        if self._dropped:
            raise DroppedError
        self._tell(news)
