"""File cache: computed results in files, named by hashes of their dependencies and content.

    KIND-NAME.DIGEST.safetensors    NAME is a hash of the dependencies, DIGEST of the content

Nothing is synced: a torn or changed file does not match its digest and is computed again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

logger = logging.getLogger(__name__)

_DIGEST_CHARS = 32


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
