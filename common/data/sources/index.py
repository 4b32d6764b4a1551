"""Index cache: the results of scans over many files, in the user's cache directory.

A file is called NAME.DIGEST.safetensors, by digests of its dependencies and of its content. It
appears atomically. A damaged one no longer matches its digest, and is rebuilt.
"""

from __future__ import annotations

import hashlib
import logging
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from platformdirs import user_cache_path
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lipt.common.data.sources.storage import is_url, versions_of
from lipt.common.text import format_bytes
from lipt.common.weights.files import write_packed

logger = logging.getLogger(__name__)

# The most recently used stay. An index of a million images takes about 60 MB, a million pairs of
# 512 features 4 GB.
MOST_FILES = 64
MOST_BYTES = 32 * 2**30

# Stamping this many takes 0.1 to 0.3 s on a local disk.
MAX_FILES = 20_000

# Larger row values go to a mapped file in the cache directory.
MEMORY_BYTES = 2**28


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
        """Whether nothing has changed since."""
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
        digest.update(repr((path, seen)).encode(errors="surrogateescape"))
    return digest.hexdigest()


def _folder() -> Path:
    return user_cache_path("lipt") / "indexes"


def kept(
    kind: str, depends_on: tuple[object, ...], make: Callable[[], Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """Map tensors from the cache by the `repr` of `depends_on`; else make and cache them."""
    folder = _folder()
    name = f"{kind}-{hashlib.sha256(repr(depends_on).encode()).hexdigest()[:32]}"
    found = _find(folder, name)
    if found is not None:
        return found
    made = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}.") as temporary:
            path = Path(temporary) / "index"
            write_packed(path, made)
            path = path.replace(folder / _file_name(name, path))
        loaded = load_file(path)
    except (OSError, SafetensorError) as error:
        logger.warning(
            "the index of the data is not kept in %s, so the next opening scans again: %s. "
            "Name a writable directory with XDG_CACHE_HOME",
            *(folder, error),
        )
        return made
    _forget_oldest(folder)
    return loaded


def _find(folder: Path, name: str) -> Mapping[str, Tensor] | None:
    for path in sorted(folder.glob(f"{name}.*.safetensors")):
        try:
            if path.name == _file_name(name, path):
                os.utime(path)
                return load_file(path)
            logger.warning("%s is damaged: it is made again", path)
            path.unlink()
        except (OSError, SafetensorError) as error:  # another process may have removed it
            logger.warning("%s cannot be used: %s", path, error)
    return None


def _file_name(name: str, path: Path) -> str:
    """A file name with the digest of the content."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{name}.{digest[:32]}.safetensors"


def _forget_oldest(folder: Path) -> None:
    found: list[tuple[float, Path, int]] = []
    for path in folder.glob("*.safetensors"):
        try:
            stat = path.stat()
            found.append((stat.st_mtime, path, stat.st_size))
        except OSError:  # another process was faster
            continue
    num_bytes = 0
    for place, (_, path, size) in enumerate(sorted(found, reverse=True)):
        num_bytes += size
        # The newest is in use, whatever its size.
        if place >= MOST_FILES or (place and num_bytes > MOST_BYTES):
            path.unlink(missing_ok=True)


def make_room(
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


def room_for(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialized tensor; large ones go to a file in the cache directory."""
    return make_room(shape, dtype, _folder(), memory_bytes=MEMORY_BYTES)
