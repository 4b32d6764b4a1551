"""Storage: local files and fsspec URLs, read by ranges."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from lipt.common.data.sources.remote import Remote, is_url, open_remote
from lipt.common.errors import DataError

# Ranges: reading a remote file in parts, of which more is fetched the longer they follow on.
#
# A request costs about as long as a hundred kilobytes take. So a part is fetched with some of what
# follows it, which doubles while parts are read in order; what is read here and there is fetched
# alone.

_LEAST, _MOST = 16 * 2**10, 4 * 2**20

# The header of the next file, which stands behind the end of one, lies in the part before.
_KEPT_PARTS = 3


class Ranges:
    """One file.

    Args:
        fetch: gives the bytes from a start to an end, fewer where the file ends before.
    """

    def __init__(self, fetch: Callable[[int, int], bytes]) -> None:
        self._fetch = fetch
        self._parts: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_PARTS)
        self._ahead = _LEAST
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        """A range, from any thread; shorter where the file ends."""
        with self._lock:
            for start, part in self._parts:
                if start <= offset and offset + size <= start + len(part):
                    return part[offset - start : offset - start + size]
            follows = any(
                start <= offset <= start + len(part) + _LEAST for start, part in self._parts
            )
            self._ahead = min(2 * self._ahead, _MOST) if follows else _LEAST
            part = self._fetch(offset, offset + max(size, self._ahead))
            self._parts.append((offset, part))
            return part[:size]


# Storage: files on a disk or behind a URL, listed and read in ranges, never as a whole.
#
# On a disk a range is one call of the system; behind a URL it is what fsspec asks the server for.

_OPEN_FILES = 64


class Storage(Protocol):
    """Where files lie.

    Attributes:
        threads: how many may read at once with profit.
    """

    threads: int

    def is_file(self, name: str) -> bool:
        """Whether there is a file of that name."""
        ...

    def listed(self, folder: str, suffix: str, *, below: bool) -> list[str] | None:
        """The names of the files in a folder that end so, sorted; with its folders' if `below`.

        None where there is no such folder.
        """
        ...

    def size(self, name: str) -> int:
        """A file's bytes; raises OSError where there is none."""
        ...

    def read(self, name: str, offset: int, size: int) -> bytes:
        """A range of a file, from any thread; shorter where the file ends. Raises OSError."""
        ...


def storage_of(source: str, name: str) -> Storage:
    """The storage that a file's name belongs to: a URL's, or this machine's.

    Args:
        source: for messages.
        name: a path or a URL.

    Raises:
        ConfigError: the URL is of no kind that fsspec knows, or holds a password.
        MissingExtraError: it is a URL, and fsspec or what it needs is not installed.
    """
    return RemoteFiles(open_remote(source, name)) if is_url(name) else LocalFiles()


class LocalFiles:
    """Files of this machine's file systems; the last ones read stay open."""

    threads = 1

    def __init__(self) -> None:
        self._open = lru_cache(_OPEN_FILES)(_Descriptor)

    def is_file(self, name: str) -> bool:
        """Whether it is a file."""
        return Path(name).is_file()

    def listed(self, folder: str, suffix: str, *, below: bool) -> list[str] | None:
        """The files, by their whole paths."""
        path = Path(folder)
        if not path.is_dir():
            return None
        return sorted(str(file) for file in (path.rglob if below else path.glob)(f"*{suffix}"))

    def size(self, name: str) -> int:
        """From the file's own entry."""
        return Path(name).stat().st_size

    def read(self, name: str, offset: int, size: int) -> bytes:
        """One call; it does not move a place that threads would share."""
        file = self._open(name)  # held, so that nobody closes it meanwhile
        return os.pread(file.number, size, offset)


class RemoteFiles:
    """Files behind URLs of one kind; neighbouring ranges are fetched together."""

    threads = 16

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._ranges = lru_cache(_OPEN_FILES)(self._ranges_of)

    def is_file(self, name: str) -> bool:
        """Whether the server says so."""
        return self._remote.is_file(name)

    def listed(self, folder: str, suffix: str, *, below: bool) -> list[str] | None:
        """The files, by their whole URLs."""
        found = self._remote.listed(folder, below=below)
        return None if found is None else [name for name in found if name.endswith(suffix)]

    def size(self, name: str) -> int:
        """As the server gives it."""
        return self._remote.size(name)

    def read(self, name: str, offset: int, size: int) -> bytes:
        """From what was fetched of the file last, or the server."""
        return self._ranges(name).read(offset, size)

    def _ranges_of(self, name: str) -> Ranges:
        return Ranges(lambda start, end: self._remote.read(name, start, end))


class _Descriptor:
    """An open file; closed when the last who reads from it has let go of it."""

    def __init__(self, name: str) -> None:
        self.number = os.open(name, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


def read_exactly(storage: Storage, name: str, offset: int, size: int) -> bytes:
    """A range of a file, all of it.

    Raises:
        DataError: the file ends before, or cannot be read.
    """
    parts: list[bytes] = []
    missing = size
    while missing > 0:
        try:
            part = storage.read(name, offset + size - missing, missing)
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error}") from error
        if not part:
            raise DataError(
                f"{name} ends {missing} bytes before the end of what lies at {offset}: it has "
                "changed since it was opened"
            )
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
