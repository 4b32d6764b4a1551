"""What is left on a disk when the power goes: synced contents, under synced names.

SIGKILL alone loses nothing that was handed to the kernel, so it cannot show that a file is
synced before a record names it. Here every `os.fsync` is written down, and what never had one
is lost when the test says so. SQLite's own files are left as they are.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path


def record_syncs(journal: Path) -> None:
    """Let every `os.fsync` of this process leave in `journal` what it made durable."""
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        # Before the sync: what is added while it lasts may not be part of it.
        found = os.fstat(descriptor)
        lines = [f"content {found.st_ino} {found.st_size}\n"]
        if stat.S_ISDIR(found.st_mode):
            folder = Path(f"/proc/self/fd/{descriptor}").resolve()
            lines = [f"name {entry}\n" for entry in folder.iterdir()]
        fsync(descriptor)
        with journal.open("a") as file:
            file.write("".join(lines))

    setattr(os, "fsync", recorded)  # noqa: B010 - a module is patched


def cut_power(directory: Path, journal: Path) -> list[Path]:
    """Remove names and empty files that had no sync; the paths of what was lost."""
    synced = set(journal.read_text().splitlines())
    lost = []
    for path in sorted(directory.resolve().glob("*/*")):
        named = {f"name {path}", f"name {path.parent}"} <= synced
        found = path.stat()
        if not named:
            path.unlink()
        elif f"content {found.st_ino} {found.st_size}" not in synced:
            os.truncate(path, 0)
        else:
            continue
        lost.append(path)
    for folder in directory.resolve().iterdir():
        if f"name {folder}" not in synced:
            shutil.rmtree(folder)
    return lost
