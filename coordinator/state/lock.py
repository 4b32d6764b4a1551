"""One coordinator per state directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lipt.common.errors import StateError


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
            directory.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise StateError(
                f"state directory {directory} cannot be used: {error.strerror}. "
                "Make it writable, or give another --state-dir."
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "an unnamed process"
            self._file.close()
            raise StateError(
                f"state directory {directory} is in use by {holder}. "
                "Stop that coordinator, or give another --state-dir."
            ) from None

    def describe(self, address: str) -> None:
        """Write down who holds the lock, for the next one's refusal."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"process {os.getpid()} serving {address}\n")
        self._file.flush()

    def release(self) -> None:
        """Give the directory free."""
        self._file.close()
