"""Retention: removes ended runs by their age and number, where the operator has set limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from lipt.common.errors import StateError
from lipt.common.observability.logs import EventKind, Events
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.records import RunSummary

_DAY = 86_400.0
# A run that was asked for within this time is in use.
_IN_USE_SECONDS = 3600.0


def overdue(
    runs: Iterable[RunSummary], *, now: float, keep_days: float | None, keep_runs: int | None
) -> Sequence[RunSummary]:
    """The ended runs that are not kept any longer, the first to end first; None keeps all."""
    ended = sorted(
        (run for run in runs if run.state.ended), key=lambda run: (_end(run), run.run_id)
    )
    too_many = 0 if keep_runs is None else max(0, len(ended) - keep_runs)
    return [
        run
        for place, run in enumerate(ended)
        if place < too_many or (keep_days is not None and now - _end(run) > keep_days * _DAY)
    ]


@dataclass(frozen=True)
class Retention:
    """Removes overdue runs; their blobs are needed no more then."""

    store: RunStore
    compute: ComputeQueue
    settings: StorageSettings
    events: Events
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    async def run(self) -> None:
        """Remove until cancelled; first after a pause, for peers come back to their runs."""
        while True:
            await self.sleep(self.settings.collect_every_seconds)
            await self.apply()

    async def apply(self) -> None:
        """Remove overdue runs that are not in use."""
        settings = self.settings
        runs = overdue(
            self.store.runs(),
            now=self.clock(),
            keep_days=settings.keep_days,
            keep_runs=settings.keep_runs,
        )
        for run in runs:
            if self._in_use(run.run_id):
                continue
            try:
                await self.store.remove(run.run_id)
            except StateError as error:
                self.events.record(
                    EventKind.RETRIED, detail="collection", level=logging.WARNING, reason=str(error)
                )
                return
            self.events.record(EventKind.EXPIRED, detail="runs", run=run.name)

    def _in_use(self, run_id: str) -> bool:
        computed = any(job.run == run_id for job in self.compute.computations())
        return computed or self.store.idle_seconds(run_id) < _IN_USE_SECONDS


def _end(run: RunSummary) -> float:
    return run.created_at if run.ended_at is None else run.ended_at
