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


class Verification:
    """Compares a store's blobs with their digests, and remembers it for a while."""

    def __init__(
        self, blobs: BlobStore, *, monotonic_clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._blobs, self._clock = blobs, monotonic_clock
        self._found: dict[BlobName, tuple[_Stamp, float]] = {}
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
            return await asyncio.to_thread(self._path, name)

    def _path(self, name: BlobName) -> Path:
        path = self._blobs.path(name)
        stamp, now = _stamp(path), self._clock()
        before, until = self._found.pop(name, (None, 0.0))
        if stamp != before or now >= until:
            path, until = self._blobs.verified_path(name), now + _VALID_SECONDS
        self._found[name] = stamp, until
        while len(self._found) > _MOST_REMEMBERED:
            self._found.pop(next(iter(self._found)), None)
        return path


def _stamp(path: Path) -> _Stamp:
    with state_errors(path):
        found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
