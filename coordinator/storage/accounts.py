"""Accounts: what each caller stores, and its quota."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import state_errors
from lipt.common.errors import StorageFullError, UploadInProgressError
from lipt.coordinator.settings import StorageSettings

# Quota: how much uploads may take, of one peer and of all; what is not set follows the disk.

# The rest is for what the coordinator makes itself, and for what runs keep.
_SHARE_OF_DISK = 3


@dataclass(frozen=True)
class Quota:
    """How much uploads may take that no record names, those that are yet to arrive included."""

    max_bytes: int
    max_bytes_per_peer: int
    max_unfinished: int
    max_unfinished_per_peer: int


def resolve_quota(settings: StorageSettings, *, usable_bytes: int) -> Quota:
    """The quota of a directory.

    Args:
        settings: what the operator has set.
        usable_bytes: of the disk, what is free and what uploads take already.
    """
    max_bytes = settings.max_bytes or usable_bytes // _SHARE_OF_DISK
    return Quota(
        max_bytes=max_bytes,
        max_bytes_per_peer=min(max_bytes, settings.max_bytes_per_peer or max_bytes // 2),
        max_unfinished=settings.max_unfinished,
        max_unfinished_per_peer=min(settings.max_unfinished, settings.max_unfinished_per_peer),
    )


def free_bytes(directory: Path) -> int:
    """What this process could still write there.

    Raises:
        StateError: the disk refuses.
    """
    with state_errors(directory):
        return shutil.disk_usage(directory).free


# Accounts: what each peer has uploaded that no record names, and whether it may upload more.
#
# Kept in memory, for the names of most peers are those of connections and end with the process:
# after a restart they are made of the files that are there, which are nobody's then. They count in
# all, until they expire or somebody goes on with them.
#
# Files of learners have an account per lease. It is as large as a learner needs, whatever others
# have stored, so that trainers cannot keep a worker from handing in. What is left of leases that
# are over counts against a quota of its own.

NOBODY = ""
# Whoever was cut has come back by then; what is still silent makes room where room is needed.
_GRACE_SECONDS = 120.0
# By then an upload that is being sent may have ended.
_RETRY_SECONDS = 10.0


@dataclass(frozen=True)
class Allowance:
    """What may be sent for a learner: so many files, each of so many bytes at most."""

    lease: str
    max_files: int
    max_file_bytes: int


@dataclass(frozen=True)
class _Entry:
    """An upload: of how many bytes, declared or stored, whose, and for which lease if any."""

    peer: str
    size_bytes: int
    lease: str = ""
    finished: bool = False
    sending: bool = False
    heard_at: float = 0.0


class Accounts:
    """Uploads by digest; belongs to one thread."""

    def __init__(
        self, quota: Quota, *, clock: Callable[[], float], is_live: Callable[[str], bool]
    ) -> None:
        """Begin with nothing.

        Args:
            quota: what uploads may take.
            clock: seconds.
            is_live: whether a lease still holds.
        """
        self.quota = quota
        self._clock = clock
        self._is_live = is_live
        self._entries: dict[str, _Entry] = {}

    def restore(self, finished: Mapping[str, int], unfinished: Mapping[str, int]) -> None:
        """Take over what an earlier process left, sizes by digest; whose it is nobody knows."""
        now = self._clock()
        for sizes, whole in ((finished, True), (unfinished, False)):
            for sha256, size_bytes in sizes.items():
                self._entries[sha256] = _Entry(NOBODY, size_bytes, finished=whole, heard_at=now)

    def begin(
        self, name: BlobName, peer: str, allowances: Iterable[Allowance] = ()
    ) -> tuple[str, ...]:
        """Reserve an upload's declared size; `end` has to follow.

        Args:
            name: what is to arrive.
            peer: who sends it.
            allowances: of the learners that it has the lease of.

        Returns:
            The beginnings that make room for it, and are no more in the accounts: uploads of
            which nothing was heard for minutes.

        Raises:
            UploadInProgressError: it is being sent.
            StorageFullError: the peer has stored as much as it may, or all peers have.
        """
        before = self._entries.get(name.sha256)
        if before is not None and before.sending:
            raise UploadInProgressError.of(name)
        lease = self._lease_for(name, peer, allowances)
        leaving = () if lease else self._require_room(name, peer)
        for sha256 in leaving:
            del self._entries[sha256]
        self._entries[name.sha256] = _Entry(peer, name.size_bytes, lease=lease, sending=True)
        return leaving

    def end(self, name: BlobName, *, finished: bool, kept: bool) -> None:
        """An upload is being sent no more: it is whole, or its beginning is kept, or nothing is."""
        entry = self._entries[name.sha256]
        if finished or kept:
            self._entries[name.sha256] = replace(
                entry, sending=False, finished=finished, heard_at=self._clock()
            )
        else:
            del self._entries[name.sha256]

    def forget(self, digests: Iterable[str]) -> None:
        """These are gone, or a record names them now; those that are being sent stay."""
        for sha256 in digests:
            entry = self._entries.get(sha256)
            if entry is not None and not entry.sending:
                del self._entries[sha256]

    def digests(self) -> frozenset[str]:
        """Of all uploads."""
        return frozenset(self._entries)

    def num_unfinished(self) -> int:
        """How many uploads have begun and are not whole."""
        return sum(not entry.finished for entry in self._entries.values())

    def num_bytes(self, *, finished: bool) -> int:
        """What whole uploads take, or what is reserved for the others."""
        return sum(it.size_bytes for it in self._entries.values() if it.finished is finished)

    def _lease_for(self, name: BlobName, peer: str, allowances: Iterable[Allowance]) -> str:
        """The lease that an upload is for; none where it does not fit any."""
        if self._left_too_much(peer):
            return ""
        for allowance in allowances:
            sent = [sha for sha, it in self._entries.items() if it.lease == allowance.lease]
            new = name.sha256 not in sent
            if name.size_bytes <= allowance.max_file_bytes and (
                len(sent) + new <= allowance.max_files
            ):
                return allowance.lease
        return ""

    def _left_too_much(self, peer: str) -> bool:
        """Whether learners' files that no run took are more than one peer, or all, may leave."""
        files = [entry for entry in self._entries.values() if entry.lease]
        if _bytes(files) <= self.quota.max_bytes_per_peer:
            return False
        left = [entry for entry in files if not self._is_live(entry.lease)]
        own = [entry for entry in left if entry.peer == peer]
        return _bytes(own) > self.quota.max_bytes_per_peer or _bytes(left) > self.quota.max_bytes

    def _require_room(self, name: BlobName, peer: str) -> tuple[str, ...]:
        others = {
            sha256: entry
            for sha256, entry in self._entries.items()
            if not entry.lease and sha256 != name.sha256
        }
        own = {sha256: entry for sha256, entry in others.items() if entry.peer == peer}
        quota = self.quota
        leaving = self._fit(
            own, name, "this peer", quota.max_bytes_per_peer, quota.max_unfinished_per_peer
        )
        rest = {sha256: entry for sha256, entry in others.items() if sha256 not in leaving}
        return leaving + self._fit(
            rest, name, "all peers together", quota.max_bytes, quota.max_unfinished
        )

    def _fit(
        self,
        entries: dict[str, _Entry],
        name: BlobName,
        whose: str,
        max_bytes: int,
        max_unfinished: int,
    ) -> tuple[str, ...]:
        """What has to leave of `entries`, silent for longest first, so that an upload fits."""
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
                f"{max_unfinished} may be under way. Finish those that have begun; one that is "
                f"silent for {_GRACE_SECONDS:.0f} s makes room for others.",
                retry_after_seconds=_RETRY_SECONDS,
            )
        if num_bytes > max_bytes:
            raise StorageFullError(
                f"with {name} the uploads of {whose} would take {num_bytes} bytes, those that are "
                f"yet to arrive included; at most {max_bytes} are taken. What nobody uses expires; "
                "send less meanwhile, or free some disk and raise storage.max_bytes and "
                "storage.max_bytes_per_peer on the coordinator."
            )
        return tuple(leaving)


def _bytes(entries: Iterable[_Entry]) -> int:
    return sum(entry.size_bytes for entry in entries)
