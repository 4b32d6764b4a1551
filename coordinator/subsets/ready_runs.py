"""Ready runs: what a trainer may ask about, and where their learners came from."""

from __future__ import annotations

from lipt.common.errors import DataError
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.jobs.trajectories import Trajectories
from lipt.coordinator.runs.requests import require_ready
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.records import RunRecord


def find_ready(
    store: RunStore, name: str, data: DataDescription, *, or_else: str = ""
) -> RunRecord:
    """The run of that name, with its theta_p, of the data that is served.

    Args:
        store: of all runs.
        name: id, name, or "latest".
        data: what this coordinator serves.
        or_else: what else helps where the run is of other data, as the end of a sentence.

    Raises:
        UnknownRunError, RunNotReadyError: there is no such run, or no theta_p yet.
        DataError: the run was made on another data set.
    """
    run = store.find(name)
    require_ready(run, store.activity(run.run_id))
    if run.fingerprint != data.fingerprint:
        raise DataError(
            f"run {run.name} was made on data with fingerprint {run.fingerprint}, this "
            f"coordinator now serves {data.source} with {data.fingerprint}. "
            f"Start the coordinator with the run's own data{or_else}."
        )
    return run


def trajectories_of(run: RunRecord) -> Trajectories:
    """Where a ready run's learners came from, and what they became."""
    if run.initial_weights is None:
        raise ValueError(f"run {run.run_id} is ready without initial weights")
    return Trajectories(run.initial_weights, run.committed)
