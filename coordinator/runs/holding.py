"""Holding: a run whose data was changed under it waits for it, and is not lost."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lipt.common.backoff import Backoff
from lipt.common.errors import OtherDataError
from lipt.common.observability.logs import EventKind, Events, logging_about
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.records import RunRecord
from lipt.coordinator.state.summaries import RunSummary

ResultT = TypeVar("ResultT")

_BACKOFF = Backoff(first_seconds=1.0, max_seconds=30.0)


class Holding:
    """Does what a run needs as soon as its own data is there; until then the run is held."""

    def __init__(
        self, store: RunStore, events: Events, sleep: Callable[[float], Awaitable[object]]
    ) -> None:
        self._store = store
        self._events = events
        self._sleep = sleep

    async def __call__(self, run_id: str, action: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """What `action` gives.

        Args:
            run_id: whose action it is.
            action: called again after every `OtherDataError`; what else it raises is raised.
        """
        num_failures = 0
        try:
            while True:
                try:
                    return await action()
                except OtherDataError as error:
                    num_failures += 1
                    run = self._store.find(run_id)
                    reason = f"run {run.name} waits for its own data: {error}"
                    if num_failures == 1:
                        record_held(run, reason, self._events)
                    self._store.hold(run_id, reason)
                    await self._sleep(_BACKOFF.pause_seconds(num_failures))
        finally:
            if num_failures:
                self._store.release(run_id)


def record_held(run: RunRecord | RunSummary, reason: str, events: Events) -> None:
    """Log and count that a run is held."""
    with logging_about(run=run.run_id):
        events.record(EventKind.RUN_HELD, level=logging.ERROR, run=run.name, reason=reason)
