"""Remote files: read by windows, and cached."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lipt.common.errors import ConfigError, DataError
from lipt.common.imports import import_extra

# Window: a part of a file as a file of its own, which reads no more than it is asked for.

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# What a header of most image formats fits into.
_BUFFER_BYTES = 4096


class Window(io.RawIOBase):
    """A seekable file over the bytes from `offset` on.

    Args:
        read: gives a range, by its offset and size; shorter where the file ends.
        offset: where the part begins.
        size: its bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes], offset: int, size: int) -> None:
        super().__init__()
        self._read, self._offset, self._size, self._place = read, offset, size, 0

    def buffered(self) -> io.BufferedReader:
        """The same, with a small buffer, so that short reads cost little."""
        return io.BufferedReader(self, _BUFFER_BYTES)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The place in the part."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the part."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer as far as the part goes."""
        view = memoryview(buffer).cast("B")
        part = self._next(len(view))
        view[: len(part)] = part
        return len(part)

    def readall(self) -> bytes:
        """All that is left, in one read where the file allows that."""
        parts = iter(lambda: self._next(self._size), b"")
        return b"".join(parts)

    def _next(self, size: int) -> bytes:
        size = min(size, self._size - self._place)
        part = self._read(self._offset + self._place, size) if size > 0 else b""
        self._place += len(part)
        return part


# Remote files: what fsspec reads behind a URL, `s3://bucket/path` or `https://host/path`.
#
# Who may read them is told as their own tools have it, by the environment or their files: a secret
# on a command line is seen by everybody on the machine.

_URL = re.compile(r"(?P<kind>[A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET = re.compile(r"://[^/@]*:[^/@]*@")

# By which servers say that a file is another one; each has its own.
_MARKS = ("etag", "mtime", "lastmodified", "last_modified", "created", "md5hash", "generation")

_LOOKING_THREADS = 16


def is_url(name: str) -> bool:
    """Whether a name is a URL rather than a path."""
    return _URL.match(name) is not None


@dataclass(frozen=True)
class Remote:
    """A file system of fsspec's."""

    files: Any

    def is_file(self, url: str) -> bool:
        """Whether there is such a file.

        Raises:
            DataError: the server does not answer, or refuses to.
        """
        try:
            with _os_errors():
                return str(self.files.info(self._path(url))["type"]) == "file"
        except FileNotFoundError:
            return False
        except OSError as error:
            raise DataError(
                f"{url} cannot be read: {error}. Let the environment say where the store is and "
                "who asks for it, as its own tools want it."
            ) from error

    def listed(self, folder: str, *, below: bool) -> list[str] | None:
        """The URLs of the files in a folder, or also below it; None where there is none."""
        try:
            with _os_errors():
                found = self.files.find(self._path(folder), maxdepth=None if below else 1)
        except OSError:
            return None
        return sorted(str(self.files.unstrip_protocol(path)) for path in found) or None

    def size(self, url: str) -> int:
        """Its bytes.

        Raises:
            OSError: there is no such file, or the server does not say.
        """
        with _os_errors():
            size = self.files.info(self._path(url)).get("size")
        if not isinstance(size, int):
            raise OSError(f"the server does not say how large {url} is")
        return size

    def read(self, url: str, start: int, end: int) -> bytes:
        """A range of a file.

        Raises:
            OSError: it cannot be read.
        """
        with _os_errors():
            content: bytes = self.files.cat_file(self._path(url), start=start, end=end)
        if len(content) > end - start:
            raise OSError(f"the server sends all of {url} where a part is asked for")
        return content

    def open(self, url: str) -> Window:
        """A seekable file, which fetches what is read of it and nothing more.

        Raises:
            OSError: there is no such file.
        """
        return Window(lambda offset, size: self.read(url, offset, offset + size), 0, self.size(url))

    def look(self, url: str) -> tuple[str, ...]:
        """A file's size and what the server says of its age, asked for anew."""
        try:
            with _os_errors():
                info: Mapping[str, Any] = self.files.info(self._path(url))
        except OSError as error:
            return (type(error).__name__,)
        known = {name.lower().replace("-", ""): value for name, value in info.items()}
        return (f"size={known.get('size')}", *(f"{n}={known[n]}" for n in _MARKS if n in known))

    def forget(self) -> None:
        """Ask the server anew from here on."""
        self.files.invalidate_cache()

    def _path(self, url: str) -> str:
        return str(self.files._strip_protocol(url))  # noqa: SLF001 - as fsspec's own functions do


@contextmanager
def _os_errors() -> Iterator[None]:
    """Make one kind of what the clients of stores raise when they cannot reach them."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def open_remote(source: str, url: str) -> Remote:
    """What reads URLs of one kind; connections are shared by all of it.

    Args:
        source: for messages.
        url: a file's, or a folder's.

    Raises:
        ConfigError: fsspec knows no such kind, it cannot be set up, or there is a password in it.
        MissingExtraError: fsspec, or what it needs for that kind, is not installed.
    """
    if _SECRET.search(url):
        raise ConfigError(
            f"{_SECRET.sub('://', source)}: there is a password in this URL, which everybody on "
            "this machine could read. Put it where the store's own tools look for it, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment."
        )
    match = _URL.match(url)
    kind = match["kind"] if match is not None else ""
    needed_for = f"the data set {source}"
    fsspec = import_extra("fsspec", package="fsspec", extra="remote", needed_for=needed_for)
    if kind == "s3":
        import_extra("s3fs", package="s3fs", extra="remote", needed_for=needed_for)
    try:
        return Remote(fsspec.filesystem(kind))
    except (ImportError, ValueError, OSError) as error:
        raise ConfigError(
            f"{source}: {kind}:// cannot be read: {error}. Install what fsspec needs for it, or "
            "name another URL."
        ) from error


def looks(urls: Sequence[str]) -> list[tuple[str, ...]]:
    """How remote files look now, many at once."""
    kinds = {url.partition("://")[0]: url for url in urls}
    opened = {kind: open_remote(url, url) for kind, url in kinds.items()}
    for remote in opened.values():
        remote.forget()
    with ThreadPoolExecutor(_LOOKING_THREADS, thread_name_prefix="look") as executor:
        return list(executor.map(lambda url: opened[url.partition("://")[0]].look(url), urls))
