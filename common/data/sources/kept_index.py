"""Kept indexes: what was found out about very many files, on disk, so that it is found out once.

    NAME.DIGEST.safetensors    NAME says what the content depends on, DIGEST what it is

Nothing has to be synced or locked: a file appears as a whole, two processes that make the same one
at once write the same, and one that a crash or the disk has damaged does not have its digest any
more, and is made again. They lie in the user's cache directory, which XDG_CACHE_HOME may name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from platformdirs import user_cache_path
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lipt.common.weights.container import write_packed

logger = logging.getLogger(__name__)

# Those that were used last; an index of a million images takes about 60 MB, and a million pairs
# of 512 features 4 GB.
MOST_FILES = 64
MOST_BYTES = 32 * 2**30


def index_folder() -> Path:
    """Where indexes are kept."""
    return user_cache_path("lipt") / "indexes"


def kept(
    kind: str, depends_on: tuple[object, ...], make: Callable[[], Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """The tensors that were kept, mapped into memory; or those of `make`, kept from then on.

    Args:
        kind: what they are.
        depends_on: everything that they depend on, told apart by `repr`.
        make: gives them. What it raises is raised, and nothing is kept.
    """
    folder = index_folder()
    name = f"{kind}-{hashlib.sha256(repr(depends_on).encode()).hexdigest()[:32]}"
    found = _find(folder, name)
    if found is not None:
        return found
    made = make()
    try:
        path = _write(folder, name, made)
        loaded = load_file(path)
    except (OSError, SafetensorError) as error:
        logger.warning(
            "what was found out about the data is not kept in %s, and will be found out again at "
            "the next opening: %s. Name a directory that can be written with XDG_CACHE_HOME",
            folder,
            error,
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


def _write(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}.") as temporary:
        path = Path(temporary) / "index"
        write_packed(path, tensors)
        return path.replace(folder / _file_name(name, path))


def _file_name(name: str, path: Path) -> str:
    """The name that a file should have for what it holds."""
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
        # The last one is wanted now, however large it is.
        if place >= MOST_FILES or (place and num_bytes > MOST_BYTES):
            path.unlink(missing_ok=True)
