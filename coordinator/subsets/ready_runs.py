"""Ready runs: what a trainer may ask about, and where their learners came from."""

from __future__ import annotations

from lipt.common.errors import RunNotReadyError
from lipt.common.states import RunState
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.runs.own_data import require_going_on, require_own_data
from lipt.coordinator.runs.requests import how_far, require_ready
from lipt.coordinator.runs.store import LATEST, RunStore
from lipt.coordinator.state.records import RunRecord


def find_named(store: RunStore, name: str) -> RunRecord:
    """The run that subsets and weights of a name are of, in any state.

    Args:
        store: of all runs.
        name: id, name, or "latest": the newest run that is ready, one of the data that is served
            before others; where none is ready, the newest.

    Raises:
        UnknownRunError: there is no such run.
    """
    newest_first = store.runs()[::-1]
    ready = [run for run in newest_first if name == LATEST and run.state is RunState.READY]
    served = [run for run in ready if not store.held(run.run_id)]
    newest = next(iter(served or ready), None)
    return store.find(name) if newest is None else store.record(newest.run_id)


def find_finished(store: RunStore, name: str) -> RunRecord:
    """The run of that name, with its theta_p, of whatever data; see `find_named`.

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
    """The run of that name, with its theta*, of whatever data and however far.

    Raises:
        UnknownRunError: there is no such run.
        OtherDataError: it has no theta* yet, and waits for its own data.
        RunNotReadyError: it has no theta* yet.
    """
    run = store.find(name)
    if run.initial_weights is None:
        require_going_on(store, run)
        raise RunNotReadyError(how_far(run, store.activity(run.run_id)))
    return run


def find_ready(
    store: RunStore, name: str, data: DataDescription, *, or_else: str = ""
) -> RunRecord:
    """The run of that name, with its theta_p, of the data that is served.

    Args:
        store: of all runs.
        name: id, name, or "latest", as in `find_named`.
        data: what this coordinator serves.
        or_else: what else helps where the run is of other data, as the end of a sentence.

    Raises:
        UnknownRunError, RunNotReadyError: there is no such run, or no theta_p yet.
        OtherDataError: the run was made on another data set.
    """
    run = find_finished(store, name)
    require_own_data(run, data, or_else=or_else)
    return run
