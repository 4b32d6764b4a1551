"""Storage of one coordinator: uploads, and the removal of unused blobs and old runs."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from lipt.common.blobs.durable import remove_stale_temporaries, state_errors
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
from lipt.coordinator.storage.accounts import Accounts, LeaseId, Uploads, free_bytes, resolve_quota

logger = logging.getLogger(__name__)

_HOUR, _DAY = 3600.0, 86_400.0
_IN_USE_SECONDS = 3600.0


@dataclass(eq=False)
class Storage:
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
    # Without it runs age by the wall clock alone.
    steady_clock: Callable[[], float] | None = None
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        self.uploads = Uploads(self.blobs, self.accounts)
        self.latest = Collected()
        self.store.listen(self.forget_named)
        self._aging = self.wall_clock
        if self.steady_clock is not None:
            times = (run.ended_at or run.created_at for run in self.store.runs())
            newest = max(times, default=None)
            self._aging = aging_clock(newest, self.wall_clock, self.steady_clock)

    def forget_named(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        blobs = [run.initial_weights, run.pretrained_weights]
        for learner in learners:
            blobs += [learner.shard, learner.result, *learner.snapshots]
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
                self._retry_later(error)
                return
            self.events.record(EventKind.EXPIRED, detail="runs", run=run.name)

    def _in_use(self, run_id: str) -> bool:
        computed = any(job.run == run_id for job in self.compute.computations())
        return computed or self.store.idle_seconds(run_id) < _IN_USE_SECONDS

    def _retry_later(self, error: StateError) -> None:
        self.events.record(
            EventKind.RETRIED, detail="collection", level=logging.WARNING, reason=str(error)
        )

    async def collect(self) -> None:
        """Remove expired files; those that cannot be removed now are retried later."""
        work = asyncio.ensure_future(asyncio.to_thread(self._collect, self.accounts.digests()))
        try:
            done, settled = await asyncio.shield(work)
        except asyncio.CancelledError:
            # The directory's lock is released next, and nothing may be removed without it.
            await asyncio.wait({work})
            raise
        except StateError as error:
            self._retry_later(error)
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
        """One collection, and the uploads that are gone or now named; None while paused."""
        now, settings = self.wall_clock(), self.settings
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
            parts = {part.sha256 for part in self.blobs.expiry.parts()}
            left = {it for it in uploads if it in parts or self.blobs.expiry.blob(it) is not None}
            return done, uploads - left.difference(named_digests(self.directory))


def aging_clock(
    newest_at: float | None, wall_clock: Callable[[], float], clock: Callable[[], float]
) -> Callable[[], float]:
    """The time by which runs age, at most the wall clock's.

    A wall clock that is wrong for hours would remove runs for good. So time goes on from the newest
    run of earlier processes, with the steady clock: while no coordinator served, no run ages.
    """
    began, newest = clock(), wall_clock() if newest_at is None else newest_at
    return lambda: min(wall_clock(), newest + clock() - began)


def open_accounts(
    directory: Path,
    blobs: BlobStore,
    settings: StorageSettings,
    is_live: Callable[[LeaseId], bool],
    clock: Callable[[], float],
) -> Accounts:
    """The accounts, with the uploads of an earlier process; reads the disk."""
    named = set(named_digests(directory))
    left = (blobs.expiry.blob(digest) for digest in blobs.expiry.digests() if digest not in named)
    finished = {blob.sha256: blob.size_bytes for blob in left if blob is not None}
    unfinished = {part.sha256: part.size_bytes for part in blobs.expiry.parts()}
    taken = sum(finished.values())
    usable = free_bytes(directory) + taken + sum(unfinished.values())
    quota = resolve_quota(settings, usable_bytes=usable)
    most, most_of_one = quota.max_bytes, quota.max_bytes_per_peer
    logger.info("uploads may take %d bytes, %d of one peer; %d are taken", most, most_of_one, taken)
    accounts = Accounts(quota, clock=clock, is_live=is_live)
    accounts.restore(finished, unfinished)
    return accounts
