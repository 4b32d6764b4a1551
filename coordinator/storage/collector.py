"""Removal while serving: unused blobs by the collector, ended runs by their age and number.

Each file is removed by itself, after the needs of all records were read, as in `lipt state gc`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lipt.common.blobs.durable import remove_stale_temporaries, state_errors
from lipt.common.blobs.store import Expiry, StoredFile
from lipt.common.errors import StateError
from lipt.common.observability.logs import EventKind, Events
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.contents import read_in_parts
from lipt.coordinator.state.files import collection_allowed
from lipt.coordinator.state.needs import given_digests, named_digests, needed_blobs
from lipt.coordinator.state.records import RunSummary
from lipt.coordinator.storage.accounts import Accounts

_HOUR = 3600.0
_DAY = 86_400.0
# A run that was asked for within this time is in use.
_IN_USE_SECONDS = 3600.0


@dataclass(frozen=True)
class Round:
    """Findings of one look at a directory, and the files that it removed.

    Attributes:
        named: digests of uploads that records name by now.
        needed_bytes: of blobs that records need.
        spare_bytes: of other blobs that are too young to be removed.
        blobs: removed blobs.
        parts: removed beginnings of uploads.
    """

    named: frozenset[str] = frozenset()
    needed_bytes: int = 0
    spare_bytes: int = 0
    blobs: tuple[StoredFile, ...] = ()
    parts: tuple[StoredFile, ...] = ()


@dataclass
class Collector:
    """Removes what nobody needs or uses from one state directory; `clock` is the wall clock."""

    directory: Path
    expiry: Expiry
    accounts: Accounts
    settings: StorageSettings
    events: Events
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    latest: Round = field(default_factory=Round)

    async def run(self) -> None:
        """Collect until cancelled; first after a pause, for peers come back to their uploads."""
        while True:
            await self.sleep(self.settings.collect_every_seconds)
            await self.collect()

    async def collect(self) -> None:
        """Remove expired files; those that cannot be removed now are left for the next time."""
        uploads = self.accounts.digests()
        work = asyncio.ensure_future(asyncio.to_thread(self._collect, uploads))
        try:
            done = await asyncio.shield(work)
        except asyncio.CancelledError:
            # The directory is released afterwards, and nothing may be removed from it then.
            await asyncio.wait({work})
            raise
        except StateError as error:
            self.events.record(
                EventKind.RETRIED, detail="collection", level=logging.WARNING, reason=str(error)
            )
            return
        if done is None:
            return
        self.latest = done
        self.accounts.forget(file.sha256 for file in (*done.blobs, *done.parts))
        self.accounts.forget(done.named)
        for detail, files in (("blobs", done.blobs), ("uploads", done.parts)):
            if files:
                num_bytes = sum(file.size_bytes for file in files)
                self.events.record(
                    EventKind.EXPIRED, detail=detail, files=len(files), bytes=num_bytes
                )

    def _collect(self, uploads: frozenset[str]) -> Round | None:
        """A round; None while collection is paused."""
        now, settings = self.clock(), self.settings
        with state_errors(self.directory), collection_allowed(self.directory) as allowed:
            if not allowed:
                return None
            remove_stale_temporaries(self.directory / "uploads")
            kept = _read_kept(self.directory)
            needed_bytes = spare_bytes = 0
            gone: list[StoredFile] = []
            # What was named after the records were read was used, or held, after that.
            before = now - settings.unused_hours * _HOUR
            for digest in self.expiry.digests():
                # Of what records need they have the size: hardly any file is looked at.
                needed = kept.get(digest)
                blob = None if needed else self.expiry.blob(digest)
                if needed:
                    needed_bytes += needed
                elif blob is None:
                    continue
                elif digest in kept:
                    needed_bytes += blob.size_bytes
                elif self.expiry.remove_blob(digest, before=before):
                    gone.append(blob)
                else:
                    spare_bytes += blob.size_bytes
            before = now - settings.unfinished_hours * _HOUR
            parts = tuple(
                it
                for it in self.expiry.parts()
                if self.expiry.remove_part(it.sha256, before=before)
            )
            return Round(
                named=frozenset(it for it in named_digests(self.directory) if it in uploads),
                needed_bytes=needed_bytes,
                spare_bytes=spare_bytes,
                blobs=tuple(gone),
                parts=parts,
            )


def _read_kept(directory: Path) -> dict[str, int]:
    """Sizes of the blobs that are never removed, by digest; 0 where no record has one."""
    kept: dict[str, int] = {}
    for part in read_in_parts(directory):
        if part.problems:
            raise StateError(
                f"nothing is removed, for what is needed is not known: {part.problems[0]}. "
                "See lipt state check, and restore a backup."
            )
        for digest in given_digests(part):
            kept.setdefault(digest, 0)
        kept.update((need.blob.sha256, need.blob.size_bytes) for need in needed_blobs(part))
    return kept


def overdue(
    runs: Iterable[RunSummary], *, now: float, keep_days: float | None, keep_runs: int | None
) -> Sequence[RunSummary]:
    """The ended runs that are not kept any longer, those that ended first first.

    Args:
        runs: in any order.
        now: seconds since 1970.
        keep_days: of an ended run; None for ever.
        keep_runs: number of ended runs that are kept; None for all.
    """
    ended = sorted(
        (run for run in runs if run.state.ended), key=lambda run: (_end(run), run.run_id)
    )
    too_many = 0 if keep_runs is None else max(0, len(ended) - keep_runs)
    return [
        run
        for place, run in enumerate(ended)
        if place < too_many or (keep_days is not None and now - _end(run) > keep_days * _DAY)
    ]


@dataclass(frozen=True)
class Retention:
    """Removes overdue runs, if the operator has set limits; their blobs are needed no more then."""

    store: RunStore
    compute: ComputeQueue
    settings: StorageSettings
    events: Events
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    async def run(self) -> None:
        """Remove until cancelled; first after a pause, for peers come back to their runs."""
        while True:
            await self.sleep(self.settings.collect_every_seconds)
            await self.apply()

    async def apply(self) -> None:
        """Remove overdue runs that are not in use."""
        settings = self.settings
        runs = overdue(
            self.store.runs(),
            now=self.clock(),
            keep_days=settings.keep_days,
            keep_runs=settings.keep_runs,
        )
        for run in runs:
            if self._in_use(run.run_id):
                continue
            try:
                await self.store.remove(run.run_id)
            except StateError as error:
                self.events.record(
                    EventKind.RETRIED, detail="collection", level=logging.WARNING, reason=str(error)
                )
                return
            self.events.record(EventKind.EXPIRED, detail="runs", run=run.name)

    def _in_use(self, run_id: str) -> bool:
        computed = any(job.run == run_id for job in self.compute.computations())
        return computed or self.store.idle_seconds(run_id) < _IN_USE_SECONDS


def _end(run: RunSummary) -> float:
    return run.created_at if run.ended_at is None else run.ended_at
