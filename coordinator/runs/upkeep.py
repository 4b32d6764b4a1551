"""Upkeep: what learners are made from is made again beside the run, whose deadline goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lipt.common.errors import LiptError
from lipt.coordinator.compute.progress import OnProgress
from lipt.coordinator.runs.holding import Holding
from lipt.coordinator.state.records import RunRecord

logger = logging.getLogger(__name__)

# Makes theta* and shards again that are not whole.
Restore = Callable[[RunRecord, OnProgress], Awaitable[None]]


class Upkeep:
    """One task at most per run that is looked after."""

    def __init__(self, restore: Restore, holding: Holding) -> None:
        self._restore = restore
        self._holding = holding
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def look_after(self, run: RunRecord, report: OnProgress) -> None:
        """Restore a run's inputs where they are not whole; harmless where that is under way."""
        if run.run_id in self._tasks:
            return
        task = asyncio.create_task(self._look(run, report), name=f"restoring for run {run.run_id}")
        self._tasks[run.run_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(run.run_id, None))

    def give_up(self, run_id: str) -> None:
        """Leave what belongs to a run as it is."""
        if run_id in self._tasks:
            self._tasks[run_id].cancel()

    async def stop(self) -> None:
        """Leave everything as it is."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, run: RunRecord, report: OnProgress) -> None:
        try:
            await self._holding(run.run_id, lambda: self._restore(run, report))
        except LiptError as error:
            logger.error("run %s: %s", run.name, error)  # noqa: TRY400 - said in full
