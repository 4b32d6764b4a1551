"""Runs that trainers ask about, found by name."""

from __future__ import annotations

from lipt.common.errors import RunNotReadyError
from lipt.common.states import RunState
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.runs.holding import require_going_on, require_own_data
from lipt.coordinator.runs.requests import how_far, require_ready
from lipt.coordinator.runs.store import LATEST, RunStore
from lipt.coordinator.state.records import RunRecord


def find_named(store: RunStore, name: str) -> RunRecord:
    """A run by id or name, in any state; an UnknownRunError where there is none.

    "latest" is the newest that is ready, one of the served data before others; or else the newest.
    """
    newest_first = store.runs()[::-1]
    ready = [run for run in newest_first if name == LATEST and run.state is RunState.READY]
    served = [run for run in ready if not store.held(run.run_id)]
    newest = next(iter(served or ready), None)
    return store.find(name) if newest is None else store.record(newest.run_id)


def find_finished(store: RunStore, name: str) -> RunRecord:
    """The run of that name (`find_named`), with its theta_p, of whatever data.

    Raises:
        UnknownRunError: there is no such run.
        OtherDataError: it has no theta_p yet, and waits for its own data.
        RunNotReadyError: it has no theta_p yet.
    """
    run = find_named(store, name)
    require_going_on(store, run)
    require_ready(run, store.activity(run.run_id))
    return run


def find_begun(store: RunStore, name: str) -> RunRecord:
    """The run of that name, with its theta*, of whatever data; raises as `find_finished`."""
    run = store.find(name)
    if run.initial_weights is None:
        require_going_on(store, run)
        raise RunNotReadyError(how_far(run, store.activity(run.run_id)))
    return run


def find_ready(
    store: RunStore, name: str, data: DataDescription, *, or_else: str = ""
) -> RunRecord:
    """The run of that name, with its theta_p, of the served data.

    Raises:
        UnknownRunError, RunNotReadyError: there is no such run, or no theta_p yet.
        OtherDataError: it was made on other data; `or_else` ends the remedy.
    """
    run = find_finished(store, name)
    require_own_data(run, data, or_else=or_else)
    return run
