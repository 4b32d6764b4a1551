"""Held runs: nothing is computed for a run while other data than its own is served."""

from __future__ import annotations

import logging

from lipt.common.config.run_config import FingerprintKind
from lipt.common.errors import OtherDataError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import spec_of
from lipt.common.observability.logs import EventKind, Events, logging_about
from lipt.common.states import RunState
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import DataRecord, RunRecord, RunSummary


def record_held(run: RunRecord | RunSummary, reason: str, events: Events) -> None:
    """Log and count a held run."""
    with logging_about(run=run.run_id):
        events.record(EventKind.RUN_HELD, level=logging.ERROR, run=run.name, reason=reason)


def require_own_data(run: RunRecord, data: DataDescription, *, or_else: str = "") -> None:
    """Refuse to compute for a run on other data; arguments as for `why_held`."""
    if reason := why_held(run, data, or_else=or_else):
        raise OtherDataError(reason)


def require_going_on(store: RunStore, run: RunRecord) -> None:
    """Refuse to wait for a held run."""
    if store.shown_state(run) is RunState.HELD:
        raise OtherDataError(store.held(run.run_id))


def why_held(
    run: RunRecord | RunSummary, data: DataDescription, *, source: str = "", or_else: str = ""
) -> str:
    """Why a run is held, and the remedy (then `or_else`); empty if its data is served."""
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
    """Hold every run of other data until this process ends."""
    # Thousands of runs share a few data sets.
    sources: dict[str, str] = {}
    for run in store.runs():
        if not why_held(run, data):
            continue
        if run.fingerprint not in sources:
            known = await database.find(DataRecord, run.fingerprint)
            sources[run.fingerprint] = known.source if known else ""
        reason = why_held(run, data, source=sources[run.fingerprint])
        store.hold(run.run_id, reason)
        if not run.state.ended:
            record_held(run, reason, events)
