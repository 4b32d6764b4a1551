"""Upload: a blob that arrives piece by piece, and goes on where it was after any crash."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Self

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import publish, state_errors, try_lock, write_all
from lipt.common.errors import CorruptBlobError, UploadInProgressError, WrongOffsetError

_READ_BYTES = 1024 * 1024


class Upload:
    """The only writer of a partial blob; `BlobStore.open_upload` makes it.

    Its methods may be called from any thread: a cancelled call's `close` waits
    for the write that is still running.
    """

    def __init__(
        self,
        name: BlobName,
        offset_bytes: int,
        *,
        part: Path,
        target: Path,
        on_arrival: Callable[[BlobName], object],
    ) -> None:
        self.name = name
        self.offset_bytes = 0
        self._part = part
        self._target = target
        self._on_arrival = on_arrival
        self._digest = hashlib.sha256()
        self._lock = threading.Lock()
        with state_errors(part):
            self._file = _open_locked(name, part)
        try:
            with state_errors(part):
                self._resume(offset_bytes)
        except BaseException:
            self.close()
            raise

    def _resume(self, offset_bytes: int) -> None:
        # A longer one was begun by a peer that declared another size.
        if self._file.seek(0, 2) > self.name.size_bytes:
            self._file.truncate(0)
        self.offset_bytes = self._file.seek(0, 2)
        if self.offset_bytes != offset_bytes:
            raise WrongOffsetError(
                f"blob {self.name} is kept up to byte {self.offset_bytes}, not {offset_bytes}. "
                "Ask for the status and resume there."
            )
        self._file.seek(0)
        while piece := self._file.read(_READ_BYTES):
            self._digest.update(piece)

    def write(self, data: bytes) -> None:
        """Append bytes; they survive this process from here on, and a power cut once synced.

        Raises:
            WrongOffsetError: more than the declared size; nothing is written.
        """
        with self._lock:
            if self.offset_bytes + len(data) > self.name.size_bytes:
                raise WrongOffsetError(
                    f"{len(data)} bytes at {self.offset_bytes} go on after the end of blob "
                    f"{self.name}. Send the blob of the declared size."
                )
            try:
                with state_errors(self._part):
                    write_all(self._file, data)
            except BaseException:
                self._file.close()
                raise
            self._digest.update(data)
            self.offset_bytes += len(data)

    def finish(self) -> BlobName:
        """Verify the digest and make the blob durable under its name; closes the upload.

        Raises:
            WrongOffsetError: bytes are missing; the partial file stays.
            CorruptBlobError: the digest differs; the partial file is gone, start again.
        """
        with self._lock, self._file, state_errors(self._part):
            if self.offset_bytes != self.name.size_bytes:
                if not self.offset_bytes:
                    self._part.unlink()
                raise WrongOffsetError(
                    f"blob {self.name} ends at byte {self.offset_bytes}. Send the rest from there."
                )
            if self._digest.hexdigest() != self.name.sha256:
                self._part.unlink()
                raise CorruptBlobError(
                    f"blob {self.name} arrived as {self._digest.hexdigest()[:12]}: bytes changed "
                    "on the way or while it was read. Send it again from the start."
                )
            # Its age counts from now, also where its last byte came long ago.
            os.utime(self._part)
            publish(self._file, self._part, self._target)
            self._on_arrival(self.name)
        return self.name

    def close(self) -> None:
        """Give the partial file back for a later upload; harmless after `finish`."""
        with self._lock, state_errors(self._part):
            if not self._file.closed and self.offset_bytes == 0:
                self._part.unlink(missing_ok=True)
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_locked(name: BlobName, part: Path) -> FileIO:
    while True:
        file = FileIO(str(part), "a+", opener=_private)
        try:
            locked = try_lock(file, part)
        except BaseException:
            file.close()
            raise
        if locked:
            return file
        file.close()
        if locked is False:
            raise UploadInProgressError.of(name)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
