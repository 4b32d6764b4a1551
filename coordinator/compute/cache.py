"""What is computed per example, kept on disk beside the state: only the newest files stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

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
    folder.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    value.save(temporary)
    temporary.replace(path)
    _forget_oldest(folder)
    # Mapped from here on: what was computed can be freed.
    return load(path)


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_MAX_FILES]:
        path.unlink()
