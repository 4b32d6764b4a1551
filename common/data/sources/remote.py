"""Remote files: what fsspec reads behind a URL, `s3://bucket/path` or `https://host/path`.

Who may read them is told as their own tools have it, by the environment or their files: a secret
on a command line is seen by everybody on the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lipt.common.data.sources.window import Window
from lipt.common.errors import ConfigError, DataError
from lipt.common.imports.extras import import_extra

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
