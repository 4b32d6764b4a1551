"""What is computed per example, kept on disk beside the state: only the newest files stay."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from safetensors import SafetensorError

logger = logging.getLogger(__name__)

# A user tries several strategies on the same weights.
_MAX_FILES = 4


class Saveable(Protocol):
    """Writes itself to a file."""

    def save(self, path: Path) -> None:
        """Write the file."""
        ...


SaveableT = TypeVar("SaveableT", bound=Saveable)


def cached(
    folder: Path,
    name: str,
    *,
    load: Callable[[Path], SaveableT],
    compute: Callable[[], SaveableT],
) -> SaveableT:
    """What was kept under that name, or what `compute` makes, which is kept from then on.

    Args:
        folder: made where it is missing.
        name: says everything that the value depends on.
        load: reads what the value's `save` wrote.
        compute: makes the value.
    """
    path = folder / f"{name}.safetensors"
    if path.is_file():
        os.utime(path)
        return load(path)
    value = compute()
    if not _keep(value, path):
        return value
    _forget_oldest(folder)
    # Mapped from here on: what was computed can be freed.
    return load(path)


def _keep(value: Saveable, path: Path) -> bool:
    """Whether the value could be written; a full disk is no reason to refuse what is computed."""
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        value.save(temporary)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        logger.warning("%s is not kept, and will be computed again: %s", path, error)
        for left in path.parent.glob(f"{temporary.name}*"):
            left.unlink(missing_ok=True)
        return False
    return True


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_MAX_FILES]:
        path.unlink()
