"""Single flight: one computation per key, shared by its callers and dropped with the last one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lipt.coordinator.compute.messages import OnProgress, Progressed

ResultT = TypeVar("ResultT")
Callers = Callable[[], frozenset[str]]
Compute = Callable[[OnProgress, Callers], Coroutine[Any, Any, ResultT]]


@dataclass(eq=False)
class _Flight(Generic[ResultT]):
    latest: Progressed | None = None
    waiters: list[tuple[OnProgress, Callers]] = field(default_factory=list)
    task: asyncio.Task[ResultT] = field(init=False)

    def report(self, progressed: Progressed) -> None:
        self.latest = progressed
        for on_progress, _ in self.waiters:
            on_progress(progressed)

    def callers(self) -> frozenset[str]:
        return frozenset[str]().union(*(callers() for _, callers in self.waiters))


class SingleFlight:
    """The running computations, by key."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[Any]] = {}

    async def run(
        self, key: str, compute: Compute[ResultT], on_progress: OnProgress, callers: Callers
    ) -> ResultT:
        """The result of the key's computation; `on_progress` first gets the latest report."""
        flight: _Flight[ResultT] = self._flights.get(key) or self._begin(key, compute)
        if flight.latest is not None:
            on_progress(flight.latest)
        waiter = (on_progress, callers)
        flight.waiters.append(waiter)
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters.remove(waiter)
            if not flight.waiters:
                self._forget(key, flight)
                flight.task.cancel()

    async def stop(self) -> None:
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: str, compute: Compute[ResultT]) -> _Flight[ResultT]:
        flight = self._flights[key] = _Flight[ResultT]()

        def end(task: asyncio.Task[ResultT]) -> None:
            self._forget(key, flight)
            if not task.cancelled():
                task.exception()  # retrieved even if no caller is left

        computing = compute(flight.report, flight.callers)
        flight.task = asyncio.create_task(computing, name=f"flight {key[:12]}")
        flight.task.add_done_callback(end)
        return flight

    def _forget(self, key: str, flight: _Flight[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
