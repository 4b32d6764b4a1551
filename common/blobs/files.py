"""Files: durable ones with one writer at a time, and a cache of results.

A cached file is named by hashes of its dependencies and its content:

    KIND-NAME.DIGEST.safetensors    NAME is a hash of the dependencies, DIGEST of the content

It is not synced: a torn or changed file does not match its digest and is computed again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from lipt.common.errors import DiskFullError, StateError

logger = logging.getLogger(__name__)

# No space, no quota, and a limit of this process.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY_SUFFIX = ".tmp"
_DIGEST_CHARS = 32


@contextmanager
def state_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = DiskFullError if error.errno in _FULL else StateError
        raise kind(
            f"{path} cannot be used: {error.strerror or error}. Free space there, make it "
            "writable, put back what was removed, or choose another directory."
        ) from error


def make_directory(path: Path) -> None:
    """Create a directory and its parents, durably."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Make a file's content, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(file: FileIO, source: Path, target: Path) -> None:
    """Make a file's content durable, then rename it to its final name."""
    os.fsync(file.fileno())
    make_directory(target.parent)
    source.replace(target)
    sync(target.parent)


def try_lock(file: FileIO, path: Path) -> bool | None:
    """Lock an open file until this process ends.

    False: another process has the lock. None: the file was renamed or removed meanwhile.
    """
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        return True if os.path.samestat(os.fstat(file.fileno()), path.stat()) else None
    except FileNotFoundError:
        return None


@contextmanager
def directory_lock(
    path: Path, *, exclusive: bool, wait: bool = True, follow: bool = True
) -> Iterator[int]:
    """Lock a directory for the block, exclusive or shared; yields its descriptor, or 0.

    0: another process has the lock, and `wait` is False. Without `follow` a link is refused.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | (0 if follow else os.O_NOFOLLOW))
    try:
        how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield 0
        else:
            yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[FileIO, Path]]:
    """A new file, removed after the block unless it was renamed."""
    while True:
        descriptor, name = tempfile.mkstemp(dir=folder, suffix=_TEMPORARY_SUFFIX)
        file, path = FileIO(descriptor, "r+"), Path(name)
        # A starting process may take it for stale.
        if try_lock(file, path):
            break
        file.close()
    with file:
        try:
            yield file, path
        finally:
            path.unlink(missing_ok=True)


def remove_stale_temporaries(folder: Path) -> None:
    for path in folder.glob(f"*{_TEMPORARY_SUFFIX}"):
        try:
            with FileIO(str(path), "r+") as file:
                if try_lock(file, path):
                    path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue


def write_durably(path: Path, data: bytes) -> None:
    """Write a file into an existing folder, under its name once it is whole."""
    with temporary_file(path.parent) as (file, temporary):
        write_all(file, data)
        publish(file, temporary, path)


def write_all(file: FileIO, data: bytes | memoryview) -> None:
    """Write all data: an unbuffered file may accept parts."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def find_cached(
    folder: Path, kind: str, depends_on: tuple[object, ...], *, max_bytes: float = math.inf
) -> Path | None:
    """The cached file, marked as used; damaged ones are removed, larger ones ignored."""
    for path in folder.glob(f"{_name(kind, depends_on)}.*.safetensors"):
        try:
            if path.stat().st_size > max_bytes:
                return None
            if path.name == _file_name(kind, depends_on, path):
                os.utime(path)
                return path
            logger.warning("%s is damaged: it is computed again", path)
            path.unlink()
        except OSError as error:  # another process may have removed it
            logger.warning("%s cannot be used: %s", path, error)
    return None


def cache_file(
    folder: Path, kind: str, depends_on: tuple[object, ...], write: Callable[[Path], object]
) -> Path | None:
    """Cache the file that `write` writes, replacing an older one; None on a disk error."""
    name = _name(kind, depends_on)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}.") as temporary:
            written = Path(temporary) / "file"
            write(written)
            path = written.replace(folder / _file_name(kind, depends_on, written))
    except OSError as error:
        remedy = "Free space, or set XDG_CACHE_HOME"
        logger.warning("%s is not cached in %s: %s. %s", name, folder, error, remedy)
        return None
    for other in folder.glob(f"{name}.*.safetensors"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def cached_files(folder: Path, kind: str) -> Iterable[Path]:
    """All cached files of a kind, whose name may be a prefix of another's."""
    return folder.glob(f"{kind}-{'[0-9a-f]' * _DIGEST_CHARS}.*.safetensors")


def remove_oldest(
    paths: Iterable[Path],
    most_files: float = math.inf,
    most_bytes: float = math.inf,
    *,
    keep: Path | None = None,
) -> None:
    """Remove the files used longest ago; `keep`, or else the newest, stays, whatever its size."""
    by_age: list[tuple[bool, int, Path, int]] = []
    for path in paths:
        try:
            stat = path.stat()
            # A file's time may be ahead of the clock.
            by_age.append((path == keep, stat.st_mtime_ns, path, stat.st_size))
        except OSError:  # another process was faster
            continue
    num_bytes = 0
    for place, (*_, path, size) in enumerate(sorted(by_age, reverse=True)):
        num_bytes += size
        if place >= most_files or (place and num_bytes > most_bytes):
            path.unlink(missing_ok=True)


def _name(kind: str, depends_on: tuple[object, ...]) -> str:
    return f"{kind}-{hashlib.sha256(repr(depends_on).encode()).hexdigest()[:_DIGEST_CHARS]}"


def _file_name(kind: str, depends_on: tuple[object, ...], path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{_name(kind, depends_on)}.{digest[:_DIGEST_CHARS]}.safetensors"
