"""Disk retry: a run waits for a disk that refuses (full, read-only), in growing pauses."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lipt.common.backoff import Backoff
from lipt.common.errors import StateError
from lipt.common.observability.logs import EventKind, Events
from lipt.coordinator.runs.store import Activity, RunStore

ResultT = TypeVar("ResultT")

_BACKOFF = Backoff(first_seconds=1.0, max_seconds=30.0)


class DiskRetry:
    """Does what a run needs as soon as the disk lets it: it waits, and is not lost."""

    def __init__(
        self, store: RunStore, events: Events, sleep: Callable[[float], Awaitable[object]]
    ) -> None:
        self._store = store
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
        num_failures = 0
        while True:
            try:
                return await action()
            except StateError as error:
                num_failures += 1
                pause = _BACKOFF.pause_seconds(num_failures)
                self._events.record(
                    EventKind.RETRIED,
                    detail=stage,
                    level=logging.WARNING,
                    run=self._store.find(run_id).name,
                    after_seconds=pause,
                    reason=str(error),
                )
                self._store.set_activity(run_id, Activity(f"waiting for the disk: {error}"))
                await self._sleep(pause)
