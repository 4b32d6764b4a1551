"""Accounts: uploads that no record names, by peer and lease, and the limits of more of them.

Accounts are in memory: after a restart, stored uploads count only towards the total. Workers'
uploads count by lease, so trainers cannot block them; those of ended leases have their own quota.
"""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import state_errors
from lipt.common.blobs.store import BlobStore, Upload
from lipt.common.errors import ForeignBlobError, StorageFullError, UploadInProgressError
from lipt.coordinator.access.caller import Evidence
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.records import RunRecord

# Uploads may take this fraction (1/N) of the disk; the rest is for the coordinator's files.
_SHARE_OF_DISK = 3
NOBODY = ""
# An unfinished upload that is silent for longer is removed if room is needed.
_GRACE_SECONDS = 120.0
_RETRY_SECONDS = 10.0


# A worker may compute its learner or range again, with other bits.
_TIMES_COMPUTED = 2
# A learner has theta*'s tensors: some of the values, a mask bit for each, and a header.
_TIMES_INITIAL_BYTES, _MORE_BYTES = 2, 2**20

LeaseId: TypeAlias = tuple[AssignmentKey, int]


@dataclass(frozen=True)
class Allowance:
    """The maximum number and size of files that may be uploaded under a lease."""

    lease: LeaseId
    max_files: int
    max_file_bytes: int

    @classmethod
    def of_learner(cls, lease: LeaseId, run: RunRecord) -> Allowance:
        initial_bytes = run.initial_weights.size_bytes if run.initial_weights else 0
        return cls(
            lease,
            max_files=_TIMES_COMPUTED * (run.config.learners.num_snapshots + 1),
            max_file_bytes=_TIMES_INITIAL_BYTES * initial_bytes + _MORE_BYTES,
        )


@dataclass(frozen=True)
class Quota:
    """Limits of uploads that no record names; unfinished ones count their declared size."""

    max_bytes: int
    max_bytes_per_peer: int
    max_unfinished: int
    max_unfinished_per_peer: int


def resolve_quota(settings: StorageSettings, *, usable_bytes: int) -> Quota:
    """The quota of a directory; defaults are shares of `usable_bytes`, free or uploaded."""
    max_bytes = settings.max_bytes or usable_bytes // _SHARE_OF_DISK
    return Quota(
        max_bytes=max_bytes,
        max_bytes_per_peer=min(max_bytes, settings.max_bytes_per_peer or max_bytes // 2),
        max_unfinished=settings.max_unfinished,
        max_unfinished_per_peer=min(settings.max_unfinished, settings.max_unfinished_per_peer),
    )


def free_bytes(directory: Path) -> int:
    """Bytes that this process can still write there; a StateError if the disk fails."""
    with state_errors(directory):
        return shutil.disk_usage(directory).free


@dataclass(frozen=True)
class _Entry:
    """An upload, with declared or stored bytes."""

    peer: str
    size_bytes: int
    lease: LeaseId | None = None
    finished: bool = False
    sending: bool = False
    heard_at: float = 0.0


class Accounts:
    """Uploads by digest; used from one thread."""

    def __init__(
        self, quota: Quota, *, clock: Callable[[], float], is_live: Callable[[LeaseId], bool]
    ) -> None:
        self.quota = quota
        self._clock = clock
        self._is_live = is_live
        self._entries: dict[str, _Entry] = {}

    def restore(self, finished: Mapping[str, int], unfinished: Mapping[str, int]) -> None:
        now = self._clock()
        for sizes, whole in ((finished, True), (unfinished, False)):
            for sha256, size_bytes in sizes.items():
                self._entries[sha256] = _Entry(NOBODY, size_bytes, finished=whole, heard_at=now)

    def begin(
        self, name: BlobName, peer: str, allowance: Allowance | None = None
    ) -> tuple[str, ...]:
        """Reserve a declared size, and return the silent uploads to remove; `end` has to follow."""
        before = self._entries.get(name.sha256)
        if before is not None and before.sending:
            raise UploadInProgressError(f"blob {name} is being sent by someone else. Try again.")
        if allowance is not None:
            self._require_allowed(name, allowance)
        lease = None if allowance is None or self._left_too_much(peer) else allowance.lease
        leaving = () if lease else self._require_room(name, peer)
        for sha256 in leaving:
            del self._entries[sha256]
        self._entries[name.sha256] = _Entry(peer, name.size_bytes, lease=lease, sending=True)
        return leaving

    def end(self, name: BlobName, *, finished: bool, kept: bool) -> None:
        """Record that sending has ended: finished, partly kept, or discarded."""
        entry = self._entries[name.sha256]
        if finished or kept:
            self._entries[name.sha256] = replace(
                entry, sending=False, finished=finished, heard_at=self._clock()
            )
        else:
            del self._entries[name.sha256]

    def forget(self, digests: Iterable[str]) -> None:
        """Drop uploads that are gone or named by a record, except those being sent."""
        for sha256 in digests:
            entry = self._entries.get(sha256)
            if entry is not None and not entry.sending:
                del self._entries[sha256]

    def digests(self) -> frozenset[str]:
        return frozenset(self._entries)

    def num_unfinished(self) -> int:
        return sum(not entry.finished for entry in self._entries.values())

    def num_bytes(self, *, finished: bool) -> int:
        return sum(it.size_bytes for it in self._entries.values() if it.finished is finished)

    def _require_allowed(self, name: BlobName, allowance: Allowance) -> None:
        sent = {sha256 for sha256, it in self._entries.items() if it.lease == allowance.lease}
        num_files = len(sent | {name.sha256})
        if name.size_bytes > allowance.max_file_bytes or num_files > allowance.max_files:
            raise ForeignBlobError(
                f"{name} would be file number {num_files} under the lease of {allowance.lease[0]}, "
                f"which allows {allowance.max_files} files of at most {allowance.max_file_bytes} "
                "bytes. Send this assignment's files."
            )

    def _left_too_much(self, peer: str) -> bool:
        """Whether files of ended leases exceed the quota of the peer, or of all."""
        left = [it for it in self._entries.values() if it.lease and not self._is_live(it.lease)]
        own = [entry for entry in left if entry.peer == peer]
        return _bytes(own) > self.quota.max_bytes_per_peer or _bytes(left) > self.quota.max_bytes

    def _require_room(self, name: BlobName, peer: str) -> tuple[str, ...]:
        quota = self.quota
        others = {
            sha256: entry
            for sha256, entry in self._entries.items()
            if entry.lease is None and sha256 != name.sha256
        }
        own = {sha256: entry for sha256, entry in others.items() if entry.peer == peer}
        of_one = (quota.max_bytes_per_peer, quota.max_unfinished_per_peer)
        leaving = self._fit(own, name, "this peer", *of_one)
        rest = {sha256: entry for sha256, entry in others.items() if sha256 not in leaving}
        of_all = (quota.max_bytes, quota.max_unfinished)
        return leaving + self._fit(rest, name, "all peers together", *of_all)

    def _fit(
        self,
        entries: dict[str, _Entry],
        name: BlobName,
        whose: str,
        max_bytes: int,
        max_unfinished: int,
    ) -> tuple[str, ...]:
        """Uploads to remove so that another fits, longest silent first."""
        num_bytes = _bytes(entries.values()) + name.size_bytes
        unfinished = {sha256: it for sha256, it in entries.items() if not it.finished}
        num_unfinished = len(unfinished) + 1
        silent = sorted(
            (entry.heard_at, sha256)
            for sha256, entry in unfinished.items()
            if not entry.sending and entry.heard_at <= self._clock() - _GRACE_SECONDS
        )
        leaving = []
        for _, sha256 in silent:
            if num_bytes <= max_bytes and num_unfinished <= max_unfinished:
                break
            leaving.append(sha256)
            num_bytes -= unfinished[sha256].size_bytes
            num_unfinished -= 1
        if num_unfinished > max_unfinished:
            raise StorageFullError(
                f"{name} would be unfinished upload number {num_unfinished} of {whose}; at most "
                f"{max_unfinished} may be under way. Finish those that have begun; a silent one "
                f"makes room after {_GRACE_SECONDS:.0f} s.",
                retry_after_seconds=_RETRY_SECONDS,
            )
        if num_bytes > max_bytes:
            raise StorageFullError(
                f"with {name} the uploads of {whose} would take {num_bytes} bytes; at most "
                f"{max_bytes} are taken. Send less until unused ones expire, or raise "
                "storage.max_bytes and storage.max_bytes_per_peer on the coordinator."
            )
        return tuple(leaving)


def _bytes(entries: Iterable[_Entry]) -> int:
    return sum(entry.size_bytes for entry in entries)


@dataclass(eq=False)
class Uploads:
    """The uploads into one store, limited by the accounts; disk access runs in threads."""

    store: BlobStore
    accounts: Accounts

    @asynccontextmanager
    async def receiving(
        self, name: BlobName, offset_bytes: int, peer: str, allowance: Allowance | None = None
    ) -> AsyncIterator[Upload]:
        """Open an upload at an offset; raises as `Accounts.begin` and `BlobStore.open_upload`."""
        leaving = self.accounts.begin(name, peer, allowance)
        opening = asyncio.ensure_future(asyncio.to_thread(self._open, name, offset_bytes, leaving))
        try:
            yield await asyncio.shield(opening)
        finally:
            # The account is also closed if the caller is cancelled.
            await asyncio.shield(self._end(name, opening))

    def _open(self, name: BlobName, offset_bytes: int, leaving: Iterable[str]) -> Upload:
        for sha256 in leaving:
            self.store.expiry.remove_part(sha256, before=math.inf)
        return self.store.open_upload(name, offset_bytes)

    async def _end(self, name: BlobName, opening: asyncio.Future[Upload]) -> None:
        # The thread cannot be stopped, so wait for it.
        await asyncio.wait({opening})
        finished = kept = False
        try:
            upload = None if opening.exception() else opening.result()
            finished, kept = await asyncio.to_thread(self._close, name, upload)
        finally:
            self.accounts.end(name, finished=finished, kept=kept)

    def _close(self, name: BlobName, upload: Upload | None) -> tuple[bool, bool]:
        if upload is not None:
            upload.close()
        return self.store.has(name), self.store.part(name).exists()


class WorkerBlobs:
    """Decides which blobs a worker may read and upload; other callers are not limited."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def require_readable(self, name: BlobName, shown: Evidence) -> None:
        worker_id = self._dispatcher.workers.behind(shown)
        if worker_id is None:
            return
        run, learner = self._dispatcher.held_by(worker_id) or (None, None)
        grant = self._dispatcher.scans.held_by(worker_id)
        if grant is None and run is None:
            raise _without_lease("reads", name)
        readable = {
            grant and grant.scan.weights,
            run and run.initial_weights,
            learner and learner.shard,
        }
        if name not in readable:
            raise ForeignBlobError(
                f"blob {name} is not of this worker's assignment. A worker reads the initial "
                "weights and the shard of its assignment."
            )

    def allowance(self, name: BlobName, shown: Evidence) -> Allowance | None:
        """The worker's allowance (ForeignBlobError without a lease); None for other callers."""
        worker_id = self._dispatcher.workers.behind(shown)
        if worker_id is None:
            return None
        if held := self._dispatcher.held_by(worker_id):
            run, learner = held
            key = AssignmentKey(run.run_id, learner.index)
            return Allowance.of_learner((key, learner.epoch), run)
        if grant := self._dispatcher.scans.held_by(worker_id):
            return Allowance((grant.key, grant.epoch), _TIMES_COMPUTED, grant.scan.max_file_bytes)
        raise _without_lease("sends", name)


def _without_lease(verb: str, name: BlobName) -> ForeignBlobError:
    return ForeignBlobError(
        f"a worker {verb} blobs of its assignment, and this one has none, so not {name}. Its "
        "lease is over, or never was: ask for the next assignment."
    )
