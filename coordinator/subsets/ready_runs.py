"""Runs that trainers ask about: found by name, and their weights, whole.

Weights that the disk has changed or lost are made again, once for all who ask, until all have left.
"""

from __future__ import annotations

import asyncio

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import OtherDataError, RunNotReadyError
from lipt.common.states import RunState
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.messages import Asked
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.runs.holding import require_going_on, require_own_data
from lipt.coordinator.runs.repair import (
    Restore,
    restore_initial_weights,
    restore_pretrained_weights,
)
from lipt.coordinator.runs.requests import how_far, require_ready
from lipt.coordinator.runs.store import LATEST, RunStore
from lipt.coordinator.state.records import RunRecord
from lipt.coordinator.subsets.single_flight import SingleFlight


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


class RunWeights:
    """The weights of one coordinator's runs."""

    def __init__(
        self, store: RunStore, blobs: BlobStore, compute: ComputeQueue, *, linger_seconds: float
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._compute = compute
        self._flights = SingleFlight(linger_seconds=linger_seconds)

    async def initial(self, key: str, caller: str) -> BlobName:
        """The blob of a run's theta*, whole.

        Raises:
            UnknownRunError, RunNotReadyError: there is no such run, or no theta* yet.
            OtherDataError: it is damaged or missing, and the run's data is not served.
            CorruptBlobError: it is damaged, and cannot be made again.
        """
        run = find_named(self._store, key)
        return await self._whole(
            run, run.initial_weights, "theta*", restore_initial_weights, caller
        )

    async def pretrained(self, key: str, caller: str) -> BlobName:
        """The blob of a run's theta_p, whole; raises as `initial`."""
        run = find_named(self._store, key)
        return await self._whole(
            run, run.pretrained_weights, "theta_p", restore_pretrained_weights, caller
        )

    async def stop(self) -> None:
        """Drop all computations."""
        await self._flights.stop()

    async def _whole(
        self, run: RunRecord, name: BlobName | None, what: str, restore: Restore, caller: str
    ) -> BlobName:
        if name is None:
            require_going_on(self._store, run)
            raise RunNotReadyError(how_far(run, self._store.activity(run.run_id)))
        if await asyncio.to_thread(self._blobs.is_whole, name):
            return name
        if held := self._store.held(run.run_id):
            raise OtherDataError(
                f"{what} of run {run.name}, {name}, was changed or lost by the coordinator's disk, "
                f"and cannot be made again now: {held}"
            )
        await self._flights.run(
            f"{run.run_id} {name.sha256}",
            lambda report, waiting: restore(
                run, self._blobs, self._compute, report, Asked(run.run_id, waiting)
            ),
            lambda _: None,
            lambda: frozenset({caller}),
        )
        return name
