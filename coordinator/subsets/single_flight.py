"""Single flight: one computation per key, shared by all callers.

Without callers it is dropped: at once while queued, later while running (trainers reconnect).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lipt.coordinator.compute.messages import OnProgress, Progressed

ResultT = TypeVar("ResultT")
# Returns the current callers.
Callers = Callable[[], frozenset[str]]


@dataclass(eq=False)
class _Flight(Generic[ResultT]):
    latest: Progressed | None = None
    waiters: list[tuple[OnProgress, Callers]] = field(default_factory=list)
    task: asyncio.Task[ResultT] = field(init=False)
    lingering: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        return self.latest is not None and not self.latest.ahead

    def callers(self) -> frozenset[str]:
        return frozenset[str]().union(*(callers() for _, callers in self.waiters))


class SingleFlight:
    """The running computations, by key."""

    def __init__(
        self,
        *,
        linger_seconds: float,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Start empty; a running computation lingers `linger_seconds` without callers."""
        self._linger_seconds = linger_seconds
        self._sleep = sleep
        self._flights: dict[str, _Flight[Any]] = {}

    async def run(
        self,
        key: str,
        compute: Callable[[OnProgress, Callers], Coroutine[Any, Any, ResultT]],
        on_progress: OnProgress,
        callers: Callers,
    ) -> ResultT:
        """The result of the key's computation; `on_progress` first gets the latest report."""
        flight: _Flight[ResultT] = self._flights.get(key) or self._begin(key, compute)
        if flight.lingering is not None:
            flight.lingering.cancel()
            flight.lingering = None
        if flight.latest is not None:
            on_progress(flight.latest)
        waiter = (on_progress, callers)
        flight.waiters.append(waiter)
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters.remove(waiter)
            self._look_after(key, flight)

    async def stop(self) -> None:
        flights = tuple(self._flights.items())
        for key, flight in flights:
            self._give_up(key, flight)
        await asyncio.gather(*(flight.task for _, flight in flights), return_exceptions=True)

    def _begin(
        self,
        key: str,
        compute: Callable[[OnProgress, Callers], Coroutine[Any, Any, ResultT]],
    ) -> _Flight[ResultT]:
        flight = self._flights[key] = _Flight[ResultT]()

        def report(progressed: Progressed) -> None:
            flight.latest = progressed
            for on_progress, _ in flight.waiters:
                on_progress(progressed)
            # It may have to wait for another turn.
            self._look_after(key, flight)

        def end(task: asyncio.Task[ResultT]) -> None:
            self._forget(key, flight)
            if not task.cancelled():
                task.exception()  # retrieved even if no caller is left

        flight.task = asyncio.create_task(
            compute(report, flight.callers), name=f"flight {key[:12]}"
        )
        flight.task.add_done_callback(end)
        return flight

    def _look_after(self, key: str, flight: _Flight[Any]) -> None:
        if flight.waiters or flight.task.done():
            return
        if not flight.has_begun:
            self._give_up(key, flight)
        elif flight.lingering is None:
            flight.lingering = asyncio.create_task(self._linger(key, flight))

    async def _linger(self, key: str, flight: _Flight[Any]) -> None:
        await self._sleep(self._linger_seconds)
        self._give_up(key, flight)

    def _give_up(self, key: str, flight: _Flight[Any]) -> None:
        # Later callers start a new computation.
        self._forget(key, flight)
        flight.task.cancel()

    def _forget(self, key: str, flight: _Flight[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if flight.lingering is not None:
            flight.lingering.cancel()
