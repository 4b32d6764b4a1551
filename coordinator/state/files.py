"""Files of a state directory: permissions, the lock, pauses of the collector."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lipt.common.blobs.durable import directory_lock
from lipt.common.errors import StateError

# Pausing collection: who reads all blobs of a served directory finds what its records name.


@contextmanager
def collection_paused(directory: Path) -> Iterator[None]:
    """Let no coordinator remove blobs of a state directory during the block."""
    blobs = directory / "blobs"
    # Where there are none, the directory of all will do: nobody removes anything.
    with directory_lock(blobs if blobs.is_dir() else directory, exclusive=False):
        yield


@contextmanager
def collection_allowed(directory: Path) -> Iterator[bool]:
    """Whether blobs may be removed during the block: nobody reads all of them now."""
    with directory_lock(directory / "blobs", exclusive=True, wait=False) as allowed:
        yield allowed


# Privacy: the state is its owner's alone: 0700 for the directory, 0600 for the files in it.
#
# Weights, examples that were shipped and what runs are called are nobody else's on a shared
# machine. What an earlier version left open is closed when it is opened again.

logger = logging.getLogger(__name__)

_DIRECTORY, _FILE = 0o700, 0o600


def make_private_directory(path: Path) -> None:
    """Create a directory and its parents; it, and the files right in it, are private then."""
    path.mkdir(mode=_DIRECTORY, parents=True, exist_ok=True)
    _close(path, _DIRECTORY)
    for file in path.iterdir():
        if file.is_file() and not file.is_symlink():
            _close(file, _FILE)


def make_private_file(path: Path) -> None:
    """Create a file that no other user can open at any moment; what is there keeps its content."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, _FILE))
    _close(path, _FILE)


def _close(path: Path, mode: int) -> None:
    found = stat.S_IMODE(path.stat().st_mode)
    if not found & ~mode:
        return
    try:
        path.chmod(found & mode)
    except PermissionError:  # another user's, or a file system that has no modes
        logger.warning(
            "%s is open to other users (mode %o), and is not ours to close. Make this process's "
            "user its owner.",
            path,
            found,
        )


# State lock: one coordinator per state directory.


class StateLock:
    """An advisory lock that the kernel drops with the process, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Create the directory and take its lock.

        Raises:
            StateError: another process holds it (the sentence names that one), or
                the directory cannot be written.
        """
        path = directory / "coordinator.lock"
        try:
            make_private_directory(directory)
            make_private_file(path)
            # Unbuffered: what could not be written must not be tried again at the end.
            self._file = path.open("ab+", buffering=0)
        except OSError as error:
            raise StateError(
                f"state directory {directory} cannot be used: {error.strerror}. "
                "Make it writable, or give another --state-dir."
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().decode(errors="replace").strip() or "an unnamed process"
            self._file.close()
            raise StateError(
                f"state directory {directory} is in use by {holder}. "
                "Stop that coordinator, or give another --state-dir."
            ) from None
        # An earlier holder's name must not be taken for this one's.
        self.describe("starting")

    def describe(self, doing: str) -> None:
        """Write down who holds the lock and what for ("serving ADDRESS"), for the next refusal."""
        # A courtesy: on a full disk the refusal names nobody.
        with contextlib.suppress(OSError):
            self._file.seek(0)
            self._file.truncate()
            self._file.write(f"process {os.getpid()} {doing}\n".encode())

    def release(self) -> None:
        """Give the directory free."""
        self._file.close()
