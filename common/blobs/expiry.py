"""Expiry: old blobs and cut uploads are removed from a store while it is in use.

A blob is as old as its last use. Whoever is told that it is there uses it first, under a lock
that its removal takes as well, also between processes: what was acknowledged a moment ago is
never removed, however old its content is.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from lipt.common.blobs.durable import directory_lock, state_errors, try_lock


@dataclass(frozen=True)
class StoredFile:
    """A file of a store.

    sha256: of the blob that it holds, or is the beginning of.
    used_at: seconds since 1970; of a beginning, when its last byte came.
    """

    sha256: str
    size_bytes: int
    used_at: float


class Expiry:
    """What may be removed from one directory of blobs, and its removal; for any thread."""

    def __init__(self, root: Path) -> None:
        self._blobs = root / "blobs"
        self._uploads = root / "uploads"
        self._held: Counter[str] = Counter()
        self._holding = threading.Lock()

    def digests(self) -> Iterator[str]:
        """Those of all whole blobs, folder by folder; none of them is looked at."""
        with state_errors(self._blobs):
            for folder in _names(self._blobs):
                yield from _names(self._blobs / folder)

    def blob(self, sha256: str) -> StoredFile | None:
        """A whole blob, where it is there."""
        return _file(self._blobs / sha256[:2] / sha256)

    def parts(self) -> Iterator[StoredFile]:
        """All blobs that have begun to arrive."""
        with state_errors(self._uploads):
            found = sorted(self._uploads.glob("*.part"))
        yield from filter(None, map(_file, found))

    def touch(self, path: Path) -> bool:
        """Whether a file is there; it counts as used now.

        Raises:
            StateError: the disk refuses.
        """
        with state_errors(path), contextlib.suppress(FileNotFoundError):
            with directory_lock(path.parent, exclusive=False):
                try:
                    os.utime(path)
                except FileNotFoundError:
                    raise
                except OSError:
                    # What cannot be touched, on a disk that is read-only, cannot be removed.
                    return path.exists()
            return True
        return False

    @contextmanager
    def holding(self, *digests: str) -> Iterator[None]:
        """Let these blobs, where they are there, not expire during the block."""
        with self._holding:
            self._held.update(digests)
        try:
            yield
        finally:
            with self._holding:
                self._held.subtract(digests)
                self._held += Counter()

    def remove_blob(self, sha256: str, *, before: float) -> bool:
        """Remove a blob unless it is held, or was used after `before`; whether it was removed.

        Raises:
            StateError: the disk refuses.
        """
        path = self._blobs / sha256[:2] / sha256
        with (
            state_errors(path),
            contextlib.suppress(FileNotFoundError),
            directory_lock(path.parent, exclusive=True),
            self._holding,
        ):
            if not self._held[sha256] and path.stat().st_mtime <= before:
                path.unlink()
                return True
        return False

    def remove_part(self, sha256: str, *, before: float) -> bool:
        """Remove a beginning unless it is being sent, or got a byte after `before`.

        Raises:
            StateError: the disk refuses.
        """
        path = self._uploads / f"{sha256}.part"
        with (
            state_errors(path),
            contextlib.suppress(FileNotFoundError),
            FileIO(str(path), "r+") as file,
        ):
            if try_lock(file, path) and os.fstat(file.fileno()).st_mtime <= before:
                path.unlink()
                return True
        return False


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries)
    return []


def _file(path: Path) -> StoredFile | None:
    with state_errors(path), contextlib.suppress(FileNotFoundError):
        stat = path.stat()
        return StoredFile(path.stem, stat.st_size, stat.st_mtime)
    return None
