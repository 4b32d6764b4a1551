"""Single flight: one computation per key, whoever asks first begins it, all wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lipt.coordinator.compute.process import OnProgress

ResultT = TypeVar("ResultT")


@dataclass
class _Flight(Generic[ResultT]):
    task: asyncio.Task[ResultT]
    latest: tuple[str, int, int] | None = None
    listeners: list[OnProgress] = field(default_factory=list)


class SingleFlight:
    """The computations under way; they go on when those who wait for them leave."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[Any]] = {}

    async def run(
        self,
        key: str,
        compute: Callable[[OnProgress], Coroutine[Any, Any, ResultT]],
        on_progress: OnProgress,
    ) -> ResultT:
        """The result of the one computation of that key.

        Args:
            key: says what the result depends on.
            compute: makes the result, and is told where to report; not called where the
                computation is under way.
            on_progress: called with (activity, done, total), first with the latest there is.
        """
        flight: _Flight[ResultT] = self._flights.get(key) or self._begin(key, compute)
        if flight.latest is not None:
            on_progress(*flight.latest)
        flight.listeners.append(on_progress)
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.listeners.remove(on_progress)

    async def stop(self) -> None:
        """Give up what is being computed; nobody can be waiting any more."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self, key: str, compute: Callable[[OnProgress], Coroutine[Any, Any, ResultT]]
    ) -> _Flight[ResultT]:
        def report(activity: str, done: int, total: int) -> None:
            flight.latest = (activity, done, total)
            for listener in flight.listeners:
                listener(activity, done, total)

        task = asyncio.create_task(compute(report), name=f"subset {key[:12]}")
        flight = self._flights[key] = _Flight(task)
        task.add_done_callback(lambda _: self._flights.pop(key))
        return flight
