"""Storage: files on disk or behind fsspec URLs, their stamps, and a cache of tensors."""

from __future__ import annotations

import hashlib
import io
import logging
import math
import mmap
import os
import re
import stat
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from platformdirs import user_cache_path
from safetensors.torch import load_file
from torch import Tensor

from lipt.common.blobs.files import cache_file, find_cached, remove_oldest
from lipt.common.errors import ConfigError, DataError
from lipt.common.imports import import_extra
from lipt.common.tensor_files import write_packed
from lipt.common.text import format_bytes
from lipt.data.sources.address import is_url

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

logger = logging.getLogger(__name__)

_SECRET = re.compile(r"://[^/@]*:[^/@]*@")

# Stamping this many takes 0.1 to 0.3 s on a local disk.
MAX_FILES = 20_000

# The most recently used tensors stay. An index of a million images takes about 60 MB, a million
# pairs of 512 features 4 GB.
MOST_FILES = 64
MOST_BYTES = 32 * 2**30

# Larger row values go to a mapped file in the cache directory.
MEMORY_BYTES = 2**28

# Attributes that servers use as file versions.
_MARKS = ("etag", "mtime", "lastmodified", "last_modified", "created", "md5hash", "generation")

_STAT_THREADS = 16
_OPEN_FILES = 16
# Fits the header of most image formats.
_BUFFER_BYTES = 4096
# A request costs about as much as transferring 100 KB.
_LEAST_AHEAD, _MOST_AHEAD = 16 * 2**10, 4 * 2**20
# The next file's header is often in the part before the last one.
_KEPT_PARTS = 3


class Window(io.RawIOBase):
    """A seekable view of a part of a file, without read-ahead."""

    def __init__(self, read: Callable[[int, int], bytes], offset: int, size: int) -> None:
        super().__init__()
        self._read, self._offset, self._size, self._place = read, offset, size, 0

    def buffered(self) -> io.BufferedReader:
        return io.BufferedReader(self, _BUFFER_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        part = self._next(len(view))
        view[: len(part)] = part
        return len(part)

    def readall(self) -> bytes:
        """The rest, in one read if the file allows it."""
        return b"".join(iter(lambda: self._next(self._size), b""))

    def _next(self, size: int) -> bytes:
        size = min(size, self._size - self._place)
        part = self._read(self._offset + self._place, size) if size > 0 else b""
        self._place += len(part)
        return part


class Ranges:
    """A file, read in parts that double during sequential reads."""

    def __init__(self, fetch: Callable[[int, int], bytes]) -> None:
        self._fetch = fetch
        self._parts: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_PARTS)
        self._ahead = _LEAST_AHEAD
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        """Read a range, from any thread; shorter at the end of the file."""
        with self._lock:
            follows = False
            for start, part in self._parts:
                if start <= offset and offset + size <= start + len(part):
                    return part[offset - start : offset - start + size]
                follows = follows or start <= offset <= start + len(part) + _LEAST_AHEAD
            self._ahead = min(2 * self._ahead, _MOST_AHEAD) if follows else _LEAST_AHEAD
            part = self._fetch(offset, offset + max(size, self._ahead))
            self._parts.append((offset, part))
            return part[:size]


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file of data for reading; an OSError for pipes and devices, which may never end."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:  # a path out of a table may be none
        raise OSError(f"{os.fspath(path)!r:.100} is no path: {error}") from error
    if stat.S_ISREG(os.fstat(number).st_mode):
        return os.fdopen(number, "rb")
    os.close(number)
    raise OSError(f"{os.fspath(path)} is no regular file, but a directory, a pipe or a device")


class Storage:
    """Files of this machine, or behind URLs of one scheme, by fsspec; errors are OSErrors."""

    def __init__(self, files: Any, *, local: bool) -> None:
        self.files, self.local = files, local
        self.threads = 1 if local else 16
        self._ranges = lru_cache(_OPEN_FILES)(lambda name: Ranges(partial(self.fetch, name)))

    def is_file(self, name: str) -> bool:
        try:
            return str(self._info(name)["type"]) == "file"
        except FileNotFoundError:
            return False
        except OSError as error:
            raise DataError(
                f"{name} cannot be read: {error}. Give the store's address and credentials in the "
                "environment, as its own tools take them."
            ) from error

    def listed(self, folder: str, suffix: str, *, below: bool) -> list[str]:
        """The files in a folder with a suffix, sorted; none without the folder."""
        try:
            with _os_errors():
                paths = self.files.find(self._path(folder), maxdepth=None if below else 1)
        except OSError:
            return []
        names = paths if self.local else map(self.files.unstrip_protocol, paths)
        return sorted(str(name) for name in names if name.endswith(suffix))

    def size(self, name: str) -> int:
        size = self._info(name).get("size")
        if not isinstance(size, int):
            raise OSError(f"the server does not give the size of {name}")
        return size

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Read a range, from any thread, and some more ahead; shorter at the end of the file."""
        return self._ranges(name).read(offset, size)

    def fetch(self, name: str, start: int, end: int) -> bytes:
        """Exactly a range of a file."""
        with _os_errors():
            content: bytes = self.files.cat_file(self._path(name), start=start, end=end)
        if len(content) > end - start:
            raise OSError(f"the server sends all of {name}, not the requested part")
        return content

    def open(self, name: str) -> Window:
        return Window(lambda at, size: self.fetch(name, at, at + size), 0, self.size(name))

    def version(self, name: str) -> tuple[str, ...]:
        try:
            info = self._info(name)
        except OSError as error:
            return (type(error).__name__,)
        known = {key.lower().replace("-", ""): value for key, value in info.items()}
        return (f"size={known.get('size')}", *(f"{n}={known[n]}" for n in _MARKS if n in known))

    def _info(self, name: str) -> Mapping[str, Any]:
        with _os_errors():
            info: Mapping[str, Any] = self.files.info(self._path(name))
        return info

    def _path(self, name: str) -> str:
        return str(self.files._strip_protocol(name))  # noqa: SLF001 - as fsspec's own functions do


@contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def storage_of(source: str, name: str) -> Storage:
    """The storage of a path or a URL; URLs of one scheme share connections."""
    import fsspec  # noqa: PLC0415 - slow to import, and not always needed

    if _SECRET.search(name):
        raise ConfigError(
            f"{_SECRET.sub('://', source)}: everybody on this machine could read the password in "
            "this URL. Put it into the environment, such as AWS_SECRET_ACCESS_KEY."
        )
    kind = name.partition("://")[0] if is_url(name) else "file"
    if kind == "s3":
        needed_for = f"the data set {source}"
        import_extra("s3fs", package="s3fs", extra="remote", needed_for=needed_for)
    try:
        return Storage(fsspec.filesystem(kind), local=kind == "file")
    except (ImportError, ValueError, OSError) as error:
        raise ConfigError(
            f"{source}: {kind}:// cannot be read: {error}. Install what fsspec needs for it, or "
            "name another URL."
        ) from error


def versions_of(urls: Sequence[str]) -> list[tuple[str, ...]]:
    storages = {url.partition("://")[0]: storage_of(url, url) for url in urls}
    for storage in storages.values():
        storage.files.invalidate_cache()
    with ThreadPoolExecutor(_STAT_THREADS, thread_name_prefix="stat") as executor:
        return list(executor.map(lambda url: storages[url.partition("://")[0]].version(url), urls))


@dataclass(frozen=True)
class Stamp:
    """Names, sizes, inodes, mtimes and ctimes of files at one moment; versions of URLs."""

    paths: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, files: Sequence[str | os.PathLike[str]], folders: Sequence[str] = ()) -> Stamp:
        """The current stamp; with too many files, of evenly spaced ones and of `folders`."""
        step = max(1, -(-len(files) // MAX_FILES))
        paths = (*(os.fspath(file) for file in files[::step]), *(folders if step > 1 else ()))
        return cls(paths, _digest(paths))

    def holds(self) -> bool:
        return _digest(self.paths) == self.digest


def _digest(paths: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    urls = [path for path in paths if is_url(path)]
    remote = dict(zip(urls, versions_of(urls), strict=True)) if urls else {}
    for path in paths:
        seen: tuple[object, ...] = remote.get(path, ())
        try:
            if not seen:
                stat = os.stat(path)  # noqa: PTH116 - a Path for each would cost more
                seen = (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
        except OSError as error:
            seen = (error.errno,)
        except ValueError:  # no path at all
            seen = ()
        digest.update(repr((path, seen)).encode(errors="surrogateescape"))
    return digest.hexdigest()


def read_exactly(storage: Storage, name: str, offset: int, size: int) -> bytes:
    try:
        content = storage.read(name, offset, size)
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error}") from error
    if len(content) < size:
        raise DataError(
            f"{name} ends {size - len(content)} bytes too early at {offset}: it has changed since "
            "it was opened"
        )
    return content


def read_lines(source: str, name: str) -> list[str]:
    storage = storage_of(source, name)
    try:
        content = read_exactly(storage, name, 0, storage.size(name))
        return content.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{source}: the classes in {name} cannot be read: {error}. Name a text file with "
            "one on each line."
        ) from error


def _indexes() -> Path:
    return user_cache_path("lipt") / "indexes"


def cached_tensors(
    kind: str, depends_on: tuple[object, ...], make: Callable[[], Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """Map tensors from the cache by the `repr` of `depends_on`; else make and cache them."""
    folder = _indexes()
    path = find_cached(folder, kind, depends_on)
    if path is None:
        made = make()
        path = cache_file(folder, kind, depends_on, partial(write_packed, tensors=made))
        if path is None:
            return made
        remove_oldest(folder.glob("*.safetensors"), MOST_FILES, MOST_BYTES)
    return load_file(path)


def allocate_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, folder: Path | None, *, memory_bytes: int
) -> Tensor:
    """An uninitialized CPU tensor: in memory, or above `memory_bytes` in a mapped file.

    The file is unnamed, so it goes with its last tensor or with the process. Memory is used without
    a folder, or where disk space cannot be reserved, as on macOS.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    can_reserve = hasattr(os, "posix_fallocate")
    if folder is None or not can_reserve or num_bytes <= memory_bytes:
        return torch.empty(shape, dtype=dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Reserved now: on a full disk, writing a page would kill the process.
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            mapped = mmap.mmap(file.fileno(), num_bytes)
    except OSError as error:
        size = format_bytes(num_bytes)
        logger.warning("%s are held in memory, not mapped in %s: %s", size, folder, error)
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype).view(shape)


def allocate_in_cache(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialized tensor; large ones go to a file in the cache directory."""
    return allocate_tensor(shape, dtype, _indexes(), memory_bytes=MEMORY_BYTES)
