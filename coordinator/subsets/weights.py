"""Weights on demand: theta* and theta_p, compared with their digests before they are named.

What the disk has changed or lost is made again, once for all who ask, until all have left.
"""

from __future__ import annotations

import asyncio

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import OtherDataError, RunNotReadyError
from lipt.coordinator.compute.messages import Asked
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.runs.own_data import require_going_on
from lipt.coordinator.runs.repair import (
    Restore,
    restore_initial_weights,
    restore_pretrained_weights,
)
from lipt.coordinator.runs.requests import how_far
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.records import RunRecord
from lipt.coordinator.subsets.ready_runs import find_named
from lipt.coordinator.subsets.single_flight import SingleFlight


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
            OtherDataError: it is not whole, or not there yet, and the run's data is not served.
            CorruptBlobError: it is not whole, and cannot be made again.
        """
        run = find_named(self._store, key)
        return await self._whole(
            run, run.initial_weights, "theta*", restore_initial_weights, caller
        )

    async def pretrained(self, key: str, caller: str) -> BlobName:
        """The blob of a run's theta_p, whole; it raises as `initial` does."""
        run = find_named(self._store, key)
        return await self._whole(
            run, run.pretrained_weights, "theta_p", restore_pretrained_weights, caller
        )

    async def stop(self) -> None:
        """Give up what is being made again; nobody can be waiting any more."""
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
