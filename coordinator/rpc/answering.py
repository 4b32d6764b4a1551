"""Helpers of servicers: streamed answers, evidence of a worker, the stop event."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Self, TypeVar

import grpc.aio

from lipt.common.access.tokens import WORKER_SECRET
from lipt.coordinator.access.caller import current_caller
from lipt.coordinator.access.worker_identity import Evidence
from lipt.coordinator.compute.progress import OnProgress, Progressed

# Answering: a computation whose latest report is streamed while a peer waits for its result.

ResultT = TypeVar("ResultT")

# A client that waits is told at most this often, and hears something at least that often.
_MIN_INTERVAL_SECONDS = 0.2
_SIGN_OF_LIFE_SECONDS = 5.0


class Answering(Generic[ResultT]):
    """One answer under way, with its latest report; leaving the block gives it up."""

    def __init__(self, answer: Callable[[OnProgress], Coroutine[Any, Any, ResultT]]) -> None:
        # What was reported last; what came before it is not sent any more.
        self._latest = Progressed("", 0, 0)
        self._has_told = False
        self._news = asyncio.Event()
        self._task = asyncio.ensure_future(answer(self._report))
        self._task.add_done_callback(lambda _: self._news.set())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()

    async def next_report(self) -> Progressed | None:
        """The latest report, at news or after some seconds; None once there is an answer."""
        if self._has_told:
            await asyncio.wait({self._task}, timeout=_MIN_INTERVAL_SECONDS)
        self._has_told = True
        if not self._task.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SIGN_OF_LIFE_SECONDS):
                    await self._news.wait()
            self._news.clear()
        return None if self._task.done() else self._latest

    def result(self) -> ResultT:
        """The answer, which has to be there; its error is raised."""
        return self._task.result()

    def _report(self, progressed: Progressed) -> None:
        self._latest = progressed
        self._news.set()


# Proving: what a call shows of who makes it.


def shown_by(context: grpc.aio.ServicerContext[Any, Any]) -> Evidence:
    """The caller of a call, and the worker's secret in its metadata, if there is one."""
    metadata = context.invocation_metadata() or ()
    secret = next((value for key, value in metadata if key == WORKER_SECRET), "")
    return Evidence(current_caller(), secret if isinstance(secret, str) else "")


# Stopping: what is under way is given up as soon as the service has to end.


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """The result of `work`; None where `stop` is set before, and `work` has been cancelled."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.wait({working})
