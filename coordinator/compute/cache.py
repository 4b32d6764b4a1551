"""Signal cache: per-example values on disk; the newest files of each kind stay.

    NAME.DIGEST.safetensors    NAME is a hash of what the content depends on, DIGEST its own

Nothing is synced: a file that was torn or changed no longer has its digest, and is computed again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from pathlib import Path

from safetensors import SafetensorError

from lipt.common.blobs.blob import BlobName
from lipt.core.workspace import Saveable

logger = logging.getLogger(__name__)

# Files of each kind. Strategies need different kinds of the same weights: a limit on all files
# together would let strategies that are tried in turn evict each other's.
MOST_FILES = 4

_DIGEST_CHARS = 32


def find_cached(
    folder: Path, kind: str, depends_on: tuple[object, ...], *, max_bytes: float = math.inf
) -> Path | None:
    """The stored file of that kind, marked as used; a damaged one is removed.

    Args:
        folder: may be missing.
        kind: of the value.
        depends_on: everything that the value depends on, compared by `repr`.
        max_bytes: a larger file is ignored.
    """
    name = _name(kind, depends_on)
    for path in folder.glob(f"{name}.*.safetensors"):
        if path.stat().st_size > max_bytes:
            return None
        if path.name == _file_name(name, path):
            os.utime(path)
            return path
        logger.warning("%s is damaged: it is computed again", path)
        path.unlink()
    return None


def keep(
    folder: Path,
    kind: str,
    depends_on: tuple[object, ...],
    value: Saveable,
    most_files: int = MOST_FILES,
) -> Path | None:
    """Store a value in place of an older one; its file, or None where the disk refuses."""
    name = _name(kind, depends_on)
    path = _keep(value, folder, name)
    if path is not None:
        for other in folder.glob(f"{name}.*.safetensors"):
            if other != path:
                other.unlink()
        _forget_oldest(folder, kind, most_files)
    return path


def _name(kind: str, depends_on: tuple[object, ...]) -> str:
    return f"{kind}-{hashlib.sha256(repr(depends_on).encode()).hexdigest()[:_DIGEST_CHARS]}"


def _keep(value: Saveable, folder: Path, name: str) -> Path | None:
    """The file of the value; None where the disk refuses, which is no reason to fail."""
    temporary = folder / f"{name}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        value.save(temporary)
        return temporary.replace(folder / _file_name(name, temporary))
    except (OSError, SafetensorError) as error:
        logger.warning("%s in %s is not kept, and will be computed again: %s", name, folder, error)
        for left in folder.glob(f"{temporary.name}*"):
            left.unlink(missing_ok=True)
        return None


def _file_name(name: str, path: Path) -> str:
    """The name that a file should have for what it holds."""
    return f"{name}.{BlobName.of_file(path).sha256[:32]}.safetensors"


def _forget_oldest(folder: Path, kind: str, most_files: int) -> None:
    # A kind may begin with another's name: what follows it has to be the digest alone.
    of_kind = folder.glob(f"{kind}-{'[0-9a-f]' * _DIGEST_CHARS}.*.safetensors")
    for path in sorted(of_kind, key=lambda path: path.stat().st_mtime)[:-most_files]:
        path.unlink()
