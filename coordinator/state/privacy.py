"""Privacy: the state is its owner's alone: 0700 for the directory, 0600 for the files in it.

Weights, examples that were shipped and what runs are called are nobody else's on a shared machine.
What an earlier version left open is closed when it is opened again.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

_DIRECTORY, _FILE = 0o700, 0o600


def make_private_directory(path: Path) -> None:
    """Create a directory and its parents; it, and the files right in it, are private then."""
    path.mkdir(mode=_DIRECTORY, parents=True, exist_ok=True)
    _close(path, _DIRECTORY)
    for file in path.iterdir():
        if file.is_file() and not file.is_symlink():
            _close(file, _FILE)


def make_private_file(path: Path) -> None:
    """Create a file that no other user can open at any moment; what is there keeps its content."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, _FILE))
    _close(path, _FILE)


def _close(path: Path, mode: int) -> None:
    found = stat.S_IMODE(path.stat().st_mode)
    if not found & ~mode:
        return
    try:
        path.chmod(found & mode)
    except PermissionError:  # another user's, or a file system that has no modes
        logger.warning(
            "%s is open to other users (mode %o), and is not ours to close. Make this process's "
            "user its owner.",
            path,
            found,
        )
