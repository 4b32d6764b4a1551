"""Verification: whether a stored blob is as its digest says, asked once for all who want it.

A list of 130 million examples takes seconds to compare, and a hundred trainers may want it at
the same time. Who comes while it is being compared waits for that, and who comes soon after goes
by it, as long as nobody has written to the file. What a disk changes by itself is found when
the time is over; until then the trainer finds it, who compares as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

from lipt.common.blobs.durable import state_errors
from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError, UnknownBlobError

_VALID_SECONDS = 600.0
# Some more than subsets that are asked for at a time.
_MOST_REMEMBERED = 1000

# What changes when somebody writes to a file.
_Stamp = tuple[int, int, int, int]
# What a file was when it was compared, and until when that is believed.
_Found = tuple[_Stamp, float]


class Verification:
    """Compares a store's blobs with their digests, and remembers it for a while."""

    def __init__(
        self, blobs: BlobStore, *, monotonic_clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._blobs, self._clock = blobs, monotonic_clock
        self._found: dict[BlobName, _Found] = {}
        self._locks: WeakValueDictionary[BlobName, asyncio.Lock] = WeakValueDictionary()

    async def is_whole(self, name: BlobName) -> bool:
        """Whether a blob is stored as its digest says."""
        try:
            await self.path(name)
        except (UnknownBlobError, CorruptBlobError):
            return False
        return True

    async def path(self, name: BlobName) -> Path:
        """The file of a stored blob that is as its digest says, or was a moment ago.

        Raises:
            UnknownBlobError: nothing is stored under that name.
            CorruptBlobError: the file was changed, or the disk lost some of it.
        """
        # Whoever waits holds it, and keeps it there for the next.
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            # The books are kept by the event loop alone; threads only read files.
            before = self._found.pop(name, None)
            path, found = await asyncio.to_thread(self._compare, name, before)
            self._found[name] = found
            if len(self._found) > _MOST_REMEMBERED:
                del self._found[next(iter(self._found))]
            return path

    def _compare(self, name: BlobName, before: _Found | None) -> tuple[Path, _Found]:
        path = self._blobs.path(name)
        stamp, now = _stamp(path), self._clock()
        if before is not None and before[0] == stamp and now < before[1]:
            return path, before
        return self._blobs.verified_path(name), (stamp, now + _VALID_SECONDS)


def _stamp(path: Path) -> _Stamp:
    with state_errors(path):
        found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
