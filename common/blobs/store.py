"""Blob store: files named by digest, with resumable uploads and expiry.

    blobs/ab/SHA256      a complete blob; ab are the digest's first two digits
    uploads/PART.part    a partial blob; its writer holds a lock that ends with its process. PART is
                         its SHA256, and where it has several senders, .SENDER.NUMBER
    uploads/*.tmp        this machine's temporary files; deleted after their process died

A blob's age counts from its last use. Acknowledging a blob touches it under the lock that removal
takes, also between processes. So a blob that was just acknowledged is never removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Self

from lipt.common.blobs.blob import BlobName, wrong_offset
from lipt.common.blobs.files import (
    directory_lock,
    make_directory,
    publish,
    remove_oldest,
    remove_stale_temporaries,
    state_errors,
    sync,
    temporary_file,
    try_lock,
    write_all,
)
from lipt.common.errors import (
    BlobTooLargeError,
    CorruptBlobError,
    UnknownBlobError,
    UploadInProgressError,
)

_READ_BYTES = 1024 * 1024
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredFile:
    """A complete or partial blob by its digest or PART; `used_at` is in seconds since 1970."""

    name: str
    size_bytes: int
    used_at: float


class Expiry:
    """Lists and removes a store's files; safe in any thread."""

    def __init__(self, root: Path) -> None:
        self._blobs = root / "blobs"
        self._uploads = root / "uploads"
        self._held: Counter[str] = Counter()
        self._holding = threading.Lock()

    def digests(self) -> Iterator[str]:
        """The digests of all complete blobs, without reading their files' metadata."""
        with state_errors(self._blobs):
            for folder in _names(self._blobs, folders=True):
                names = _names(self._blobs / folder)
                yield from (name for name in names if _DIGEST.fullmatch(name))

    def blob(self, sha256: str) -> StoredFile | None:
        return _file(self._blobs / sha256[:2] / sha256)

    def parts(self) -> Iterator[StoredFile]:
        with state_errors(self._uploads):
            paths = sorted(self._uploads.glob("*.part"))
        yield from filter(None, map(_file, paths))

    @contextmanager
    def holding(self, *digests: str) -> Iterator[None]:
        """Keep these blobs from removal during the block."""
        with self._holding:
            self._held.update(digests)
        try:
            yield
        finally:
            with self._holding:
                self._held.subtract(digests)
                self._held += Counter()

    def remove_blob(self, sha256: str, *, before: float) -> bool:
        """Remove a blob unless it is held or was used after `before`; whether it was."""
        path = self._blobs / sha256[:2] / sha256
        with (
            state_errors(path),
            suppress(FileNotFoundError),
            directory_lock(path.parent, exclusive=True, follow=False) as folder,
            self._holding,
        ):
            # By the descriptor: the folder cannot become a link to another one meanwhile.
            stats = os.stat(sha256, dir_fd=folder, follow_symlinks=False)
            if not self._held[sha256] and stats.st_mtime <= before:
                os.unlink(sha256, dir_fd=folder)
                return True
        return False

    def remove_part(self, part: str, *, before: float) -> bool:
        """Remove a partial blob unless it is open or grew after `before`; whether it was."""
        path = self._uploads / f"{part}.part"
        with state_errors(path), suppress(FileNotFoundError), FileIO(str(path), "r+") as file:
            if try_lock(file, path) and os.fstat(file.fileno()).st_mtime <= before:
                path.unlink()
                return True
        return False


def _names(folder: Path, *, folders: bool = False) -> list[str]:
    """The files in a folder, or the folders, without links."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if (entry.is_dir if folders else entry.is_file)(follow_symlinks=False)
        )
    return []


def _file(path: Path) -> StoredFile | None:
    with state_errors(path), suppress(FileNotFoundError):
        stat = path.stat()
        return StoredFile(path.stem, stat.st_size, stat.st_mtime)
    return None


class BlobStore:
    """A directory of blobs."""

    def __init__(self, root: Path, *, max_blob_bytes: int) -> None:
        self.root = root
        self.max_blob_bytes = max_blob_bytes
        self.expiry = Expiry(root)
        self._uploads = root / "uploads"
        with state_errors(root):
            make_directory(root / "blobs")
            make_directory(self._uploads)
            remove_stale_temporaries(self._uploads)

    def has(self, name: BlobName) -> bool:
        stored = self.expiry.blob(name.sha256)
        return stored is not None and stored.size_bytes == name.size_bytes

    def use(self, name: BlobName) -> bool:
        """Whether the blob is complete; marks it as used now."""
        path = self._target(name)
        with state_errors(path), suppress(FileNotFoundError):
            with directory_lock(path.parent, exclusive=False):
                try:
                    os.utime(path)
                except FileNotFoundError:
                    return False
                except OSError:  # a read-only disk removes nothing either
                    pass
            return self.has(name)
        return False

    def find(self, sha256: str) -> BlobName:
        stored = self.expiry.blob(BlobName(sha256, 0).sha256)
        if stored is None:
            raise UnknownBlobError(f"there is no blob {sha256} here. Upload it first.")
        return BlobName(sha256, stored.size_bytes)

    def path(self, name: BlobName) -> Path:
        if not self.has(name):
            raise UnknownBlobError(f"there is no blob {name} here. Upload it first.")
        return self._target(name)

    def read_bytes(self, name: BlobName) -> bytes:
        path = self.path(name)
        with state_errors(path):
            data = path.read_bytes()
        _require_same(BlobName.of(data), name, path)
        return data

    def verified_path(self, name: BlobName) -> Path:
        path = self.path(name)
        with state_errors(path):
            _require_same(BlobName.of_file(path), name, path)
        return path

    def is_whole(self, name: BlobName, *, remove_damaged: bool = False) -> bool:
        try:
            self.verified_path(name)
        except UnknownBlobError:
            return False
        except CorruptBlobError:
            if remove_damaged:
                with state_errors(self.root):
                    self._target(name).unlink(missing_ok=True)
            return False
        return True

    def put_bytes(self, data: bytes) -> BlobName:
        name = BlobName.of(data)
        self._check_size(name)
        if self.use(name) and self.is_whole(name):
            # Another process may have renamed it without syncing the directory yet.
            with state_errors(self.root):
                sync(self._target(name).parent)
            return name
        self._make_uploads()
        with state_errors(self.root), temporary_file(self._uploads) as (file, path):
            write_all(file, data)
            publish(file, path, self._target(name))
        return name

    def trim(self, max_bytes: int, *, keep: BlobName) -> None:
        """Delete the least recently used blobs until the rest fits; for caches only."""
        with state_errors(self.root):
            kept, blobs = self._target(keep), (self.root / "blobs").glob("*/*")
            kept.touch()
            remove_oldest(blobs, most_bytes=max_bytes, keep=kept)

    def committed_offset(self, name: BlobName, part: str = "") -> int:
        """The number of bytes stored of a partial blob, where its upload resumes."""
        self._check_size(name)
        if self.has(name):
            return name.size_bytes
        stored = _file(self.part(name, part))
        # Ignore a longer part: its sender declared another size.
        return stored.size_bytes if stored and stored.size_bytes <= name.size_bytes else 0

    def open_upload(self, name: BlobName, offset_bytes: int, part: str = "") -> Upload:
        """Begin or resume a blob's upload, as the only writer of its part."""
        self._check_size(name)
        self._make_uploads()
        return Upload(name, offset_bytes, part=self.part(name, part), target=self._target(name))

    def part(self, name: BlobName, part: str = "") -> Path:
        return self._uploads / f"{part or name.sha256}.part"

    def _make_uploads(self) -> None:
        with state_errors(self._uploads):
            self._uploads.mkdir(exist_ok=True)

    def _target(self, name: BlobName) -> Path:
        return self.root / "blobs" / name.sha256[:2] / name.sha256

    def _check_size(self, name: BlobName) -> None:
        if name.size_bytes > self.max_blob_bytes:
            raise BlobTooLargeError(
                f"{name} has {name.size_bytes} bytes; at most {self.max_blob_bytes} are stored. "
                "Raise the limit where the store is configured, or send less."
            )


def _require_same(actual: BlobName, name: BlobName, path: Path) -> None:
    if actual != name:
        raise CorruptBlobError(
            f"{path} does not hold blob {name} any more. Delete it, so that it is made again."
        )


class Upload:
    """The only writer of a partial blob; safe in any thread."""

    def __init__(self, name: BlobName, offset_bytes: int, *, part: Path, target: Path) -> None:
        self.name = name
        self.offset_bytes = 0
        self._part, self._target = part, target
        self._digest = hashlib.sha256()
        self._lock = threading.Lock()
        with state_errors(self._part):
            self._file = _open_locked(name, self._part)
        try:
            with state_errors(self._part):
                self._resume(offset_bytes)
        except BaseException:
            self.close()
            raise

    def _resume(self, offset_bytes: int) -> None:
        if self._file.seek(0, 2) > self.name.size_bytes:
            self._file.truncate(0)
        self.offset_bytes = self._file.seek(0, 2)
        if self.offset_bytes != offset_bytes:
            why = f"it is kept up to byte {self.offset_bytes}, not {offset_bytes}"
            raise wrong_offset(self.name, why)
        self._file.seek(0)
        while piece := self._file.read(_READ_BYTES):
            self._digest.update(piece)

    def write(self, data: bytes) -> None:
        """Append bytes; they survive a crash of this process."""
        with self._lock:
            try:
                with state_errors(self._part):
                    write_all(self._file, data)
            except BaseException:
                self._file.close()
                raise
            self._digest.update(data)
            self.offset_bytes += len(data)

    def finish(self) -> BlobName:
        """Verify the digest, make the blob durable under its name, and close."""
        with self._lock, self._file, state_errors(self._part):
            if self.offset_bytes != self.name.size_bytes:
                if not self.offset_bytes:
                    self._part.unlink()
                raise wrong_offset(self.name, f"it ends at byte {self.offset_bytes}")
            if self._digest.hexdigest() != self.name.sha256:
                self._part.unlink()
                raise CorruptBlobError(
                    f"blob {self.name} arrived as {self._digest.hexdigest()[:12]}: bytes changed "
                    "on the way or while it was read. Send it again from the start."
                )
            # Its last byte may be old.
            os.utime(self._part)
            publish(self._file, self._part, self._target)
        return self.name

    def close(self) -> None:
        """Keep the partial file for a later upload; no effect after `finish`."""
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
        file = FileIO(str(part), "a+", opener=lambda path, flags: os.open(path, flags, 0o600))
        with ExitStack() as stack:
            stack.enter_context(file)
            locked = try_lock(file, part)
            if locked:
                stack.pop_all()
                return file
        if locked is False:
            raise UploadInProgressError(f"another process uploads blob {name}. Try again later.")
