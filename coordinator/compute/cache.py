"""Signal cache: what is computed per example, kept on disk; the newest files of each kind stay.

    NAME.DIGEST.safetensors    NAME says what the content depends on, DIGEST what it is

Nothing has to be synced: a file that a power cut has torn, or the disk has changed, does
not have its digest any more, and is computed again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from lipt.common.blobs.blob import BlobName
from lipt.core.workspace import Saveable, SaveableT

logger = logging.getLogger(__name__)

# Files of each kind. Strategies need different kinds of the same weights: a limit on all files
# together would let strategies that are tried in turn evict each other's.
MOST_FILES = 4

_DIGEST_CHARS = 32


def cached(
    folder: Path,
    kind: str,
    depends_on: tuple[object, ...],
    *,
    load: Callable[[Path], SaveableT],
    compute: Callable[[], SaveableT],
    worth_keeping: Callable[[], bool],
    most_files: int = MOST_FILES,
) -> SaveableT:
    """What was kept of that kind, or what `compute` makes, which is kept from then on.

    Args:
        folder: made where it is missing.
        kind: what the value is.
        depends_on: everything that the value depends on, and nothing else; told apart by `repr`.
        load: reads what the value's `save` wrote.
        compute: makes the value.
        worth_keeping: whether what was just computed depends on nothing else, indeed.
        most_files: that are left of this kind; the oldest go.
    """
    kept = find_cached(folder, kind, depends_on)
    if kept is not None:
        return load(kept)
    value = compute()
    path = keep(folder, kind, depends_on, value, most_files) if worth_keeping() else None
    if path is None:
        return value
    # Mapped from here on: what was computed can be freed.
    return load(path)


def find_cached(
    folder: Path, kind: str, depends_on: tuple[object, ...], *, max_bytes: float = math.inf
) -> Path | None:
    """The file of what was kept of that kind, which counts as used; one that is damaged is removed.

    Args:
        folder: may be missing.
        kind: as in `cached`.
        depends_on: as in `cached`.
        max_bytes: a larger file is left unread.
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
    folder: Path, kind: str, depends_on: tuple[object, ...], value: Saveable, most_files: int
) -> Path | None:
    """Keep a value in place of what was kept of that kind; the arguments are those of `cached`.

    Returns:
        Its file; None where it cannot be written, which is no reason to fail.
    """
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
    """Where the value is kept; a full disk is no reason to refuse what is computed."""
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
