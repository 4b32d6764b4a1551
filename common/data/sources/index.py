"""Index cache: tensors from scans over many files, cached by `lipt.common.blobs.files`."""

from __future__ import annotations

import hashlib
import logging
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from platformdirs import user_cache_path
from safetensors.torch import load_file
from torch import Tensor

from lipt.common.blobs.files import cache_file, find_cached, remove_oldest
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


def cached_tensors(
    kind: str, depends_on: tuple[object, ...], make: Callable[[], Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """Map tensors from the cache by the `repr` of `depends_on`; else make and cache them."""
    folder = _folder()
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
    return allocate_tensor(shape, dtype, _folder(), memory_bytes=MEMORY_BYTES)
