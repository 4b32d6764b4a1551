"""Files of a state directory: private permissions, the coordinator's lock, collection pauses."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lipt.common.blobs.files import directory_lock
from lipt.common.errors import StateError

logger = logging.getLogger(__name__)

# Weights, examples and run names must stay private on a shared machine.
_DIRECTORY, _FILE = 0o700, 0o600


@contextmanager
def collection_paused(directory: Path) -> Iterator[None]:
    blobs = directory / "blobs"
    # Without blobs none can be removed, so any lock will do.
    with directory_lock(blobs if blobs.is_dir() else directory, exclusive=False):
        yield


@contextmanager
def collection_allowed(directory: Path) -> Iterator[bool]:
    """Whether blobs may be removed during the block: collection is not paused."""
    with directory_lock(directory / "blobs", exclusive=True, wait=False) as allowed:
        yield bool(allowed)


def make_private_directory(path: Path) -> None:
    """Create a directory and its parents; make it and the files in it private."""
    path.mkdir(mode=_DIRECTORY, parents=True, exist_ok=True)
    _close(path, _DIRECTORY)
    for file in path.iterdir():
        if file.is_file() and not file.is_symlink():
            _close(file, _FILE)


def make_private_file(path: Path) -> None:
    """Create a file that other users can never open; an existing one is kept."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, _FILE))
    _close(path, _FILE)


def _close(path: Path, mode: int) -> None:
    current = stat.S_IMODE(path.stat().st_mode)
    if not current & ~mode:
        return
    try:
        path.chmod(current & mode)
    except PermissionError:  # another user's, or a file system without modes
        logger.warning(
            "%s is open to other users (mode %o). Make this process's user its owner.",
            path,
            current,
        )


class StateLock:
    """One coordinator per state directory: a lock that the kernel releases with the process."""

    def __init__(self, directory: Path) -> None:
        path = directory / "coordinator.lock"
        try:
            make_private_directory(directory)
            make_private_file(path)
            # Unbuffered: a failed write must not be repeated on close.
            self._file = path.open("ab+", buffering=0)
        except OSError as error:
            raise StateError(
                f"state directory {directory} cannot be used: {error.strerror}. "
                "Make it writable, or give another --state-dir."
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._require_effect(path)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().decode(errors="replace").strip() or "an unnamed process"
            self._file.close()
            raise StateError(
                f"state directory {directory} is in use by {holder}. "
                "Stop that coordinator, or give another --state-dir."
            ) from None
        except OSError as error:
            self._file.close()
            raise _without_locks(directory, error.strerror) from None
        # Replaces the name of an earlier holder.
        self.describe("starting")

    def _require_effect(self, path: Path) -> None:
        with path.open("rb") as second:
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        self._file.close()
        raise _without_locks(path.parent, "a second lock of the same file was granted")

    def describe(self, doing: str) -> None:
        """Record the holder and its activity ("serving ADDRESS") for later refusals."""
        # On a full disk the refusal names no holder.
        with contextlib.suppress(OSError):
            self._file.seek(0)
            self._file.truncate()
            self._file.write(f"process {os.getpid()} {doing}\n".encode())

    def release(self) -> None:
        self._file.close()


def _without_locks(directory: Path, why: str | None) -> StateError:
    return StateError(
        f"locks do not work in {directory} ({why}): two coordinators could use it at once. Give a "
        "--state-dir on a local disk."
    )
