"""Durable files: they survive a crash, and have one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from lipt.common.errors import StateError

_TEMPORARY_SUFFIX = ".tmp"


@contextmanager
def state_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "Free space there, make it writable,"
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            remedy = "It was removed or replaced while it was used: put it back,"
        raise StateError(
            f"{path} cannot be used: {error.strerror or error}. {remedy} or choose another "
            "directory."
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
