"""Held runs: a run is bound to its data by a fingerprint, and waits while other data is served.

Results on other data would be taken for the run's own. So nothing is computed for a held run, and
its state stays as it is until a coordinator serves its data again.
"""

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
    """Log and count that a run is held."""
    with logging_about(run=run.run_id):
        events.record(EventKind.RUN_HELD, level=logging.ERROR, run=run.name, reason=reason)


def require_own_data(run: RunRecord, data: DataDescription, *, or_else: str = "") -> None:
    """Refuse to compute for a run on other data; arguments as of `why_held`."""
    if reason := why_held(run, data, or_else=or_else):
        raise OtherDataError(reason)


def require_going_on(store: RunStore, run: RunRecord) -> None:
    """Refuse to wait for a run that is held."""
    if store.shown_state(run) is RunState.HELD:
        raise OtherDataError(store.held(run.run_id))


def why_held(
    run: RunRecord | RunSummary, data: DataDescription, *, source: str = "", or_else: str = ""
) -> str:
    """Why nothing can be computed for a run, and the remedy; empty where its data is served.

    `source` names the run's own data, if known; `or_else` adds a remedy to the end of the sentence.
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
    """Hold every run of other data, for as long as this process lives."""
    # Thousands of runs are of a few data sets.
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
