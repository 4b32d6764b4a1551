"""Held runs: a run waits while the coordinator serves other data than its own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lipt.common.backoff import Backoff
from lipt.common.config.fingerprint_kind import FingerprintKind
from lipt.common.errors import OtherDataError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import spec_of
from lipt.common.observability.logs import EventKind, Events, logging_about
from lipt.common.states import RunState
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord, RunSummary

# Holding: a run whose data was changed under it waits for it, and is not lost.

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


# Own data: every run is bound to the data that it was made on, by its fingerprint.
#
# What is computed for a run on other data would be served as if it were its own. So a run whose
# data is not served is *held*: nothing is computed for it, and its state stays as it is until a
# coordinator serves its data again.


def require_own_data(run: RunRecord, data: DataDescription, *, or_else: str = "") -> None:
    """Refuse what would compute for a run on other data.

    Args:
        run: in any state.
        data: what this coordinator serves.
        or_else: what else helps, as the end of a sentence.

    Raises:
        OtherDataError: the run was made on other data.
    """
    if reason := why_held(run, data, or_else=or_else):
        raise OtherDataError(reason)


def require_going_on(store: RunStore, run: RunRecord) -> None:
    """Refuse what has to wait for a run that does not go on by itself.

    Raises:
        OtherDataError: the run is held.
    """
    if store.shown_state(run) is RunState.HELD:
        raise OtherDataError(store.held(run.run_id))


def why_held(
    run: RunRecord | RunSummary, data: DataDescription, *, source: str = "", or_else: str = ""
) -> str:
    """Why nothing can be computed for a run, and what to do; empty where its own data is served.

    Args:
        run: in any state.
        data: what this coordinator serves.
        source: of the run's own data; empty where it is not known.
        or_else: what else helps, as the end of a sentence.
    """
    found = data.fingerprint_like(run.fingerprint)
    if not found:
        kind = FingerprintKind.of(run.fingerprint)
        return (
            f"run {run.name} is bound to its data by the {kind} fingerprint {run.fingerprint}, "
            f"and this coordinator has none of that kind of {data.source}. "
            f"Start the coordinator with --fingerprint {kind}{or_else}."
        )
    if found != run.fingerprint:
        own = f"{run.fingerprint} ({source})" if source else run.fingerprint
        return (
            f"run {run.name} was made on data with fingerprint {own}, this coordinator now serves "
            f"{data.source} with {found}. Start the coordinator with the run's own data{or_else}."
        )
    if run.inputs is None or spec_of(run.inputs) == data.inputs:
        return ""
    images = isinstance(run.inputs, ImageFormat)
    remedy = "with the --image-size that the run began with" if images else "as the run began"
    return (
        f"run {run.name} looks at {spec_of(run.inputs)}, and this coordinator has {data.source} as "
        f"{data.inputs}. Start the coordinator {remedy}{or_else}."
    )


async def hold_runs_of_other_data(
    store: RunStore, data: DataDescription, database: Database, events: Events
) -> None:
    """Hold every run whose own data is not served, for as long as this process lives."""
    # Thousands of runs are of a few data sets.
    sources: dict[str, str] = {}
    for run in store.runs():
        if not why_held(run, data):
            continue
        if run.fingerprint not in sources:
            known = await database.find_data(run.fingerprint)
            sources[run.fingerprint] = known.source if known else ""
        reason = why_held(run, data, source=sources[run.fingerprint])
        store.hold(run.run_id, reason)
        if not run.state.ended:
            record_held(run, reason, events)
