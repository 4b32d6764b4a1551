"""State lock: one coordinator per state directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from lipt.common.errors import StateError
from lipt.coordinator.state.privacy import make_private_directory, make_private_file


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
