"""Computations that several callers may wait for: one per key, whoever asks first begins it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lipt.coordinator.compute.process import OnProgress
from lipt.coordinator.runs.store import Activity

# A client that waits hears something at least this often.
_SIGN_OF_LIFE_SECONDS = 5.0

ResultT = TypeVar("ResultT")


@dataclass
class _Computation(Generic[ResultT]):
    task: asyncio.Task[ResultT]
    activity: Activity = field(default_factory=Activity)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Computations:
    """What is being computed now; it goes on when those who wait leave."""

    def __init__(self) -> None:
        self._running: dict[str, _Computation[Any]] = {}

    async def follow(
        self, key: str, compute: Callable[[OnProgress], Coroutine[Any, Any, ResultT]]
    ) -> AsyncIterator[Activity | ResultT]:
        """Progress of the one computation of that key, and at last its result.

        Args:
            key: says what the result depends on.
            compute: makes the result, and is told where to report; not called where the
                computation has begun.
        """
        computation: _Computation[ResultT] | None = self._running.get(key)
        if computation is None:
            computation = self._begin(key, compute)
        while not computation.task.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SIGN_OF_LIFE_SECONDS):
                    await computation.changed.wait()
            if not computation.task.done():
                yield computation.activity
        yield await asyncio.shield(computation.task)

    async def stop(self) -> None:
        """Give up what is being computed; nobody can be waiting any more."""
        tasks = [computation.task for computation in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self, key: str, compute: Callable[[OnProgress], Coroutine[Any, Any, ResultT]]
    ) -> _Computation[ResultT]:
        def report(text: str, done: int, total: int) -> None:
            computation = self._running[key]
            computation.activity = Activity(text, done, total)
            # Whoever waits now is woken; whoever comes later waits for the next one.
            computation.changed.set()
            computation.changed = asyncio.Event()

        task = asyncio.create_task(compute(report), name=f"subset {key[:12]}")
        computation = self._running[key] = _Computation(task)

        def forget(_: asyncio.Task[ResultT]) -> None:
            self._running.pop(key, None)
            computation.changed.set()

        task.add_done_callback(forget)
        return computation
