"""Uploads: quotas, and which files a worker may read and send.

Uploads that no record names are counted in memory: after a restart, stored ones count only towards
the total. Workers' uploads count by lease, so trainers cannot block them; those of ended leases
have their own quota.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import count
from pathlib import Path

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.files import state_errors
from lipt.common.blobs.store import BlobStore, Upload
from lipt.common.errors import ForeignBlobError, StorageFullError
from lipt.coordinator.access.caller import CallCredentials
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import LearnerGrant, LeaseId
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.maintenance import named_digests

logger = logging.getLogger(__name__)

# Uploads may take this fraction (1/N) of the disk; the rest is for the coordinator's files.
_SHARE_OF_DISK = 3
# An unfinished upload that is silent for longer is removed if room is needed.
_GRACE_SECONDS = 120.0
_RETRY_SECONDS = 10.0
# A worker may compute its learner or range again, with other bits.
_TIMES_COMPUTED = 2
# A learner has theta*'s tensors: some of the values, a mask bit for each, and a header.
_TIMES_INITIAL_BYTES, _MORE_BYTES = 2, 2**20


@dataclass(frozen=True)
class Allowance:
    """The maximum number and size of files that may be uploaded under a lease."""

    lease: LeaseId
    max_files: int
    max_file_bytes: int

    @classmethod
    def of_learner(cls, held: LearnerGrant) -> Allowance:
        run = held.run
        initial_bytes = run.initial_weights.size_bytes if run.initial_weights else 0
        return cls(
            held.lease,
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
    """An upload, with declared or stored bytes; the peer is not known after a restart."""

    peer: str
    size_bytes: int
    lease: LeaseId | None = None
    finished: bool = False
    sending: bool = False
    heard_at: float = 0.0


@dataclass(eq=False)
class Accounts:
    """Finished uploads by digest, unfinished ones by part; used from one thread.

    Each sender of a blob has parts of its own, so that none waits for, or spoils, another's.
    """

    quota: Quota
    _: KW_ONLY
    clock: Callable[[], float]
    is_live: Callable[[LeaseId], bool]
    _entries: dict[str, _Entry] = field(default_factory=dict, init=False)

    def restore(self, finished: Mapping[str, int], unfinished: Mapping[str, int]) -> None:
        now = self.clock()
        for sizes, whole in ((finished, True), (unfinished, False)):
            for key, size_bytes in sizes.items():
                self._entries[key] = _Entry("", size_bytes, finished=whole, heard_at=now)

    def part_of(self, name: BlobName, sender: str) -> str:
        """The part that a sender's upload continues: its first one that is not being sent."""
        parts = (f"{name.sha256}.{sender}.{number}" for number in count())
        return next(part for part in parts if not self._is_sent(part))

    def begin(
        self, part: str, name: BlobName, peer: str, allowance: Allowance | None = None
    ) -> tuple[str, ...]:
        """Reserve a declared size, and return the silent parts to remove; `end` has to follow."""
        if allowance is not None:
            self._require_allowed(part, name, allowance)
        lease = None if allowance is None or self._left_too_much(peer) else allowance.lease
        leaving = () if lease else self._require_room(part, name, peer)
        for silent in leaving:
            del self._entries[silent]
        self._entries[part] = _Entry(peer, name.size_bytes, lease=lease, sending=True)
        return leaving

    def end(self, part: str, name: BlobName, *, finished: bool, kept: bool) -> None:
        """Record that sending has ended: finished, partly kept, or discarded."""
        entry = replace(self._entries.pop(part), sending=False, heard_at=self.clock())
        if finished:
            # Of several senders the first counts.
            self._entries.setdefault(name.sha256, replace(entry, finished=True))
        elif kept:
            self._entries[part] = entry

    def forget(self, keys: Iterable[str]) -> None:
        """Drop uploads that are gone or named by a record, except those being sent."""
        for key in keys:
            if not self._is_sent(key):
                self._entries.pop(key, None)

    def keys(self) -> frozenset[str]:
        """The digests and parts of all uploads."""
        return frozenset(self._entries)

    def _is_sent(self, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.sending

    def num_unfinished(self) -> int:
        return sum(not entry.finished for entry in self._entries.values())

    def num_bytes(self, *, finished: bool) -> int:
        return sum(
            entry.size_bytes for entry in self._entries.values() if entry.finished is finished
        )

    def _require_allowed(self, part: str, name: BlobName, allowance: Allowance) -> None:
        sent = {key for key, entry in self._entries.items() if entry.lease == allowance.lease}
        num_files = len(sent - {name.sha256} | {part})
        if name.size_bytes > allowance.max_file_bytes or num_files > allowance.max_files:
            raise ForeignBlobError(
                f"{name} would be file number {num_files} under the lease of "
                f"{allowance.lease.key}, which allows {allowance.max_files} files of at most "
                f"{allowance.max_file_bytes} bytes. Send this assignment's files."
            )

    def _left_too_much(self, peer: str) -> bool:
        """Whether files of ended leases exceed the quota of the peer, or of all."""
        left = [
            entry
            for entry in self._entries.values()
            if entry.lease and not self.is_live(entry.lease)
        ]
        own = [entry for entry in left if entry.peer == peer]
        return _bytes(own) > self.quota.max_bytes_per_peer or _bytes(left) > self.quota.max_bytes

    def _require_room(self, part: str, name: BlobName, peer: str) -> tuple[str, ...]:
        quota = self.quota
        uploads = {
            key: entry
            for key, entry in self._entries.items()
            if entry.lease is None and key != part
        }
        own = {key: entry for key, entry in uploads.items() if entry.peer == peer}
        of_one = (quota.max_bytes_per_peer, quota.max_unfinished_per_peer)
        leaving = self._fit(own, name, "this peer", *of_one)
        rest = {key: entry for key, entry in uploads.items() if key not in leaving}
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
        """Parts to remove so that another fits, longest silent first."""
        num_bytes = _bytes(entries.values()) + name.size_bytes
        unfinished = {key: entry for key, entry in entries.items() if not entry.finished}
        num_unfinished = len(unfinished) + 1
        silent = sorted(
            (entry.heard_at, part)
            for part, entry in unfinished.items()
            if not entry.sending and entry.heard_at <= self.clock() - _GRACE_SECONDS
        )
        leaving = []
        for _, part in silent:
            if num_bytes <= max_bytes and num_unfinished <= max_unfinished:
                break
            leaving.append(part)
            num_bytes -= unfinished[part].size_bytes
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

    async def committed_offset(self, name: BlobName, sender: str) -> int:
        """The number of bytes kept of a sender's upload, where it resumes."""
        part = self.accounts.part_of(name, sender)
        return await asyncio.to_thread(self.store.committed_offset, name, part)

    @asynccontextmanager
    async def receiving(
        self,
        name: BlobName,
        offset_bytes: int,
        sender: str,
        peer: str,
        allowance: Allowance | None = None,
    ) -> AsyncIterator[Upload]:
        """Open a sender's upload at an offset; raises as `Accounts.begin` and `open_upload`."""
        part = self.accounts.part_of(name, sender)
        leaving = self.accounts.begin(part, name, peer, allowance)
        begin = asyncio.to_thread(self._open, part, name, offset_bytes, leaving)
        opening = asyncio.ensure_future(begin)
        try:
            yield await asyncio.shield(opening)
        finally:
            # The account is also closed if the caller is cancelled.
            await asyncio.shield(self._end(part, name, opening))

    def _open(self, part: str, name: BlobName, offset: int, leaving: Iterable[str]) -> Upload:
        for silent in leaving:
            self.store.expiry.remove_part(silent, before=math.inf)
        return self.store.open_upload(name, offset, part)

    async def _end(self, part: str, name: BlobName, opening: asyncio.Future[Upload]) -> None:
        # The thread cannot be stopped, so wait for it.
        await asyncio.wait({opening})
        finished = kept = False
        try:
            upload = None if opening.exception() else opening.result()
            finished, kept = await asyncio.to_thread(self._close, part, name, upload)
        finally:
            self.accounts.end(part, name, finished=finished, kept=kept)

    def _close(self, part: str, name: BlobName, upload: Upload | None) -> tuple[bool, bool]:
        if upload is not None:
            upload.close()
        path, finished = self.store.part(name, part), self.store.has(name)
        if finished:  # another sender may have been faster
            with state_errors(path):
                path.unlink(missing_ok=True)
        return finished, path.exists()


@dataclass(eq=False)
class WorkerBlobs:
    """Decides which blobs a worker may read and upload; other callers are not limited."""

    dispatcher: Dispatcher

    def require_readable(self, name: BlobName, shown: CallCredentials) -> None:
        worker_id = self.dispatcher.workers.behind(shown)
        if worker_id is None:
            return
        held = self.dispatcher.held_by(worker_id)
        grant = self.dispatcher.scans.held_by(worker_id)
        if grant is None and held is None:
            raise _without_lease("reads", name)
        readable = {
            grant and grant.scan.weights,
            held and held.run.initial_weights,
            held and held.learner.shard,
        }
        if name not in readable:
            raise ForeignBlobError(
                f"blob {name} is not of this worker's assignment. A worker reads the initial "
                "weights and the shard of its assignment."
            )

    def allowance(self, name: BlobName, shown: CallCredentials) -> Allowance | None:
        """The worker's allowance (ForeignBlobError without a lease); None for other callers."""
        worker_id = self.dispatcher.workers.behind(shown)
        if worker_id is None:
            return None
        if held := self.dispatcher.held_by(worker_id):
            return Allowance.of_learner(held)
        if grant := self.dispatcher.scans.held_by(worker_id):
            return Allowance(grant.lease, _TIMES_COMPUTED, grant.scan.max_file_bytes)
        raise _without_lease("sends", name)


def _without_lease(verb: str, name: BlobName) -> ForeignBlobError:
    return ForeignBlobError(
        f"a worker {verb} blobs of its assignment, and this one has none, so not {name}. Its "
        "lease is over, or never was: ask for the next assignment."
    )


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
    finished = {blob.name: blob.size_bytes for blob in left if blob is not None}
    unfinished = {part.name: part.size_bytes for part in blobs.expiry.parts()}
    taken = sum(finished.values())
    usable = free_bytes(directory) + taken + sum(unfinished.values())
    quota = resolve_quota(settings, usable_bytes=usable)
    most, most_of_one = quota.max_bytes, quota.max_bytes_per_peer
    logger.info("uploads may take %d bytes, %d of one peer; %d are taken", most, most_of_one, taken)
    accounts = Accounts(quota, clock=clock, is_live=is_live)
    accounts.restore(finished, unfinished)
    return accounts
