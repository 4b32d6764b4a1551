"""A disk that refuses (full, read-only) is asked again, ever more seldom."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lipt.common.errors import StateError
from lipt.common.events import EventKind, Events
from lipt.coordinator.runs.store import Activity, RunBook

ResultT = TypeVar("ResultT")

_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0


class Patience:
    """Does what a run needs as soon as the disk lets it: it waits, and is not lost."""

    def __init__(
        self, book: RunBook, events: Events, sleep: Callable[[float], Awaitable[object]]
    ) -> None:
        self._book = book
        self._events = events
        self._sleep = sleep

    async def __call__(
        self, run_id: str, action: Callable[[], Awaitable[ResultT]], *, stage: str
    ) -> ResultT:
        """What `action` gives; until then the run shows what it waits for.

        Args:
            run_id: whose action it is.
            action: called again after every `StateError`; what else it raises is raised.
            stage: which kind of action, for the counter of retries.
        """
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await action()
            except StateError as error:
                self._events.record(
                    EventKind.RETRIED,
                    detail=stage,
                    level=logging.WARNING,
                    run=self._book.find(run_id).name,
                    after_seconds=pause,
                    reason=str(error),
                )
                self._book.set_activity(run_id, Activity(f"waiting for the disk: {error}"))
                await self._sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
