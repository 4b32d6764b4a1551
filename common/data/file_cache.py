"""File cache: computed results in files, and tensors that are too large for memory.

A file is named by hashes of its dependencies and its content:

    KIND-NAME.DIGEST.safetensors    NAME is a hash of the dependencies, DIGEST of the content

Nothing is synced: a torn or changed file does not match its digest and is computed again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from platformdirs import user_cache_path
from safetensors.torch import load_file
from torch import Tensor

from lipt.common.text import format_bytes
from lipt.common.weights.files import write_packed

logger = logging.getLogger(__name__)

_DIGEST_CHARS = 32

# The most recently used tensors stay. An index of a million images takes about 60 MB, a million
# pairs of 512 features 4 GB.
MOST_FILES = 64
MOST_BYTES = 32 * 2**30

# Larger row values go to a mapped file in the cache directory.
MEMORY_BYTES = 2**28


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
        logger.warning(
            "%s is not cached in %s: %s. Free space, or name another directory "
            "(XDG_CACHE_HOME for data)",
            *(name, folder, error),
        )
        return None
    for other in folder.glob(f"{name}.*.safetensors"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def cached_files(folder: Path, kind: str) -> Iterable[Path]:
    """All cached files of a kind, whose name may be a prefix of another's."""
    return folder.glob(f"{kind}-{'[0-9a-f]' * _DIGEST_CHARS}.*.safetensors")


def remove_oldest(paths: Iterable[Path], most_files: int, most_bytes: float = math.inf) -> None:
    """Remove the files used longest ago; the newest stays, whatever its size."""
    found: list[tuple[float, Path, int]] = []
    for path in paths:
        try:
            stat = path.stat()
            found.append((stat.st_mtime, path, stat.st_size))
        except OSError:  # another process was faster
            continue
    num_bytes = 0
    for place, (_, path, size) in enumerate(sorted(found, reverse=True)):
        num_bytes += size
        if place >= most_files or (place and num_bytes > most_bytes):
            path.unlink(missing_ok=True)


def _name(kind: str, depends_on: tuple[object, ...]) -> str:
    return f"{kind}-{hashlib.sha256(repr(depends_on).encode()).hexdigest()[:_DIGEST_CHARS]}"


def _file_name(kind: str, depends_on: tuple[object, ...], path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{_name(kind, depends_on)}.{digest[:_DIGEST_CHARS]}.safetensors"


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
