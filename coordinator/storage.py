"""Storage: the removal of unused files and old runs of a state directory."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from lipt.common.blobs.files import remove_stale_temporaries, state_errors
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import StateError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import Readings
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.instruments import STORAGE, UNFINISHED_UPLOADS
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.files import collection_allowed
from lipt.coordinator.state.maintenance import Collected, collect, named_digests
from lipt.coordinator.state.records import LearnerRecord, RunRecord
from lipt.coordinator.uploads import Accounts, Uploads

_HOUR, _DAY = 3600.0, 86_400.0
_IN_USE_SECONDS = 3600.0


@dataclass(eq=False)
class StateStorage:
    """Uploads into one state directory, and the removal of old runs and unused files."""

    directory: Path
    blobs: BlobStore
    accounts: Accounts
    settings: StorageSettings
    events: Events
    store: RunStore
    compute: ComputeQueue
    _: KW_ONLY
    wall_clock: Callable[[], float]
    steady_clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        self.uploads = Uploads(self.blobs, self.accounts)
        self.latest = Collected()
        self.store.listen(self.forget_named)
        newest = max((run.ended_at or run.created_at for run in self.store.runs()), default=None)
        self._aging = aging_clock(newest, self.wall_clock, self.steady_clock)
        # Files used by this process get no older than it: a machine that sleeps for days, or sets
        # its clock, would otherwise remove results that workers are about to report.
        self._aging_of_files = aging_clock(None, self.wall_clock, self.steady_clock)

    def forget_named(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        blobs = [run.initial_weights, run.pretrained_weights]
        for learner in learners:
            blobs += [learner.shard, *(learner.result.files if learner.result else ())]
        self.accounts.forget(blob.sha256 for blob in blobs if blob is not None)

    def readings(self) -> Readings:
        return {
            STORAGE: {
                ("needed",): self.latest.needed_bytes,
                ("spare",): self.latest.spare_bytes,
                ("uploaded",): self.accounts.num_bytes(finished=True),
                ("reserved",): self.accounts.num_bytes(finished=False),
            },
            UNFINISHED_UPLOADS: {(): self.accounts.num_unfinished()},
        }

    async def run(self) -> None:
        """Remove old runs and unused files, first after a pause in which peers reconnect."""
        while True:
            await self.sleep(self.settings.collect_every_seconds)
            await self.remove_overdue_runs()
            await self.collect()

    async def remove_overdue_runs(self) -> None:
        """Remove overdue runs that are not in use; their blobs are then no longer needed."""
        days = math.inf if self.settings.keep_days is None else self.settings.keep_days
        before = self._aging() - days * _DAY
        for run in self.store.runs():
            overdue = run.ended_at is not None and run.ended_at < before
            if not overdue or self._in_use(run.run_id):
                continue
            try:
                await self.store.remove(run.run_id)
            except StateError as error:
                self.events.retried("collection", error)
                return
            self.events.record(EventKind.EXPIRED, detail="runs", run=run.name)

    def _in_use(self, run_id: str) -> bool:
        computed = any(job.run == run_id for job in self.compute.computations())
        return computed or self.store.idle_seconds(run_id) < _IN_USE_SECONDS

    async def collect(self) -> None:
        """Remove expired files; those that cannot be removed now are retried later."""
        work = asyncio.ensure_future(asyncio.to_thread(self._collect, self.accounts.keys()))
        try:
            done, settled = await asyncio.shield(work)
        except asyncio.CancelledError:
            # The directory's lock is released next, and nothing may be removed without it.
            await asyncio.wait({work})
            raise
        except StateError as error:
            self.events.retried("collection", error)
            return
        if done is None:
            return
        self.latest = done
        self.accounts.forget(settled)
        for detail, files in (("blobs", done.blobs), ("uploads", done.parts)):
            if files:
                num_bytes = sum(file.size_bytes for file in files)
                self.events.record(
                    EventKind.EXPIRED, detail=detail, files=len(files), bytes=num_bytes
                )

    def _collect(self, uploads: frozenset[str]) -> tuple[Collected | None, frozenset[str]]:
        """Collect once; also returns the uploads that are gone or in use. None while paused."""
        now, settings = self._aging_of_files(), self.settings
        with state_errors(self.directory), collection_allowed(self.directory) as allowed:
            if not allowed:
                return None, frozenset()
            remove_stale_temporaries(self.directory / "uploads")
            done = collect(
                self.directory,
                self.blobs.expiry,
                # Blobs named after the records were read were used, or held, after this time.
                unused_since=now - settings.unused_hours * _HOUR,
                cut_since=now - settings.unfinished_hours * _HOUR,
            )
            parts = {part.name for part in self.blobs.expiry.parts()}
            left = {
                upload
                for upload in uploads
                if upload in parts or self.blobs.expiry.blob(upload) is not None
            }
            return done, uploads - left.difference(named_digests(self.directory))


def aging_clock(
    newest_at: float | None, wall_clock: Callable[[], float], clock: Callable[[], float]
) -> Callable[[], float]:
    """The time by which runs and files age, at most the wall clock's.

    A wall clock that is wrong for hours would remove runs for good. So time goes on from the newest
    run of earlier processes, or from now, with the steady clock: while no coordinator served, no
    run ages.
    """
    began, newest = clock(), wall_clock() if newest_at is None else newest_at
    return lambda: min(wall_clock(), newest + clock() - began)
