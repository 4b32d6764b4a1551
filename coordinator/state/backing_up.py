"""Backup: copy a state directory while it is served, the records of one moment and their blobs."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import make_directory, state_errors, sync
from lipt.common.errors import StateError
from lipt.coordinator.state.contents import DATABASE, open_read_only, read_contents
from lipt.coordinator.state.needs import needed_blobs, useful_digests
from lipt.coordinator.state.pausing import collection_paused
from lipt.coordinator.state.privacy import make_private_file


@dataclass(frozen=True)
class BackedUp:
    """What the backup holds."""

    num_runs: int
    num_blobs: int
    num_bytes: int
    num_linked: int


def back_up(directory: Path, destination: Path, *, link: bool = True) -> BackedUp:
    """Make `destination` a state directory with everything that `directory` has acknowledged.

    The database is copied first, in one consistent view; what its records need was
    durable before they were, blobs never change, and none is removed meanwhile. The
    destination appears all at once, under its name, when it is complete.

    Args:
        directory: a state directory; a coordinator may serve it.
        destination: is made; may be there if it is empty.
        link: let blobs share their files with the original's where both are on one
            file system; what is copied is compared with its digest.

    Raises:
        StateError: there is no state, a blob is missing or damaged, the destination is
            not empty or lies in the directory itself, or the disk refuses.
    """
    _require_apart(directory, destination)
    with (
        closing(open_read_only(directory)) as source,
        state_errors(destination),
        collection_paused(directory),
    ):
        if destination.is_dir() and any(destination.iterdir()):
            raise StateError(
                f"{destination} is not empty. Give a directory that is yet to be made."
            )
        make_directory(destination.absolute().parent)
        partial = Path(
            tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.absolute().parent)
        )
        try:
            _copy_database(source, partial / DATABASE)
            made = _copy_blobs(directory, partial, link=link)
            sync(partial)
            partial.rename(destination)
            sync(destination.absolute().parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return made


def _require_apart(directory: Path, destination: Path) -> None:
    """Refuse a copy that the next one would copy, and that is lost with the original."""
    resolved = destination.resolve()
    # By what they are, for a directory may be mounted twice.
    if any(
        path.exists() and directory.exists() and path.samefile(directory)
        for path in (resolved, *resolved.parents)
    ):
        raise StateError(
            f"{destination} lies in the state directory {directory}, and would be lost with it. "
            "Give a directory elsewhere, on another disk if there is one."
        )


def _copy_database(source: sqlite3.Connection, path: Path) -> None:
    try:
        # One step with all pages: writers wait for it no longer than they would for a reader.
        make_private_file(path)
        with closing(sqlite3.connect(path)) as target:
            source.backup(target, pages=-1)
            # One file, which can be read where nothing can be written.
            target.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise StateError(f"the database could not be copied to {path}: {error}.") from None
    sync(path)


def _copy_blobs(directory: Path, partial: Path, *, link: bool) -> BackedUp:
    contents = read_contents(partial)
    if contents.problems:
        raise StateError(f"{contents.problems[0]}. See lipt state check.")
    whose = {need.blob.sha256: need.whose for need in needed_blobs(contents)}
    useful = useful_digests(contents)
    num_bytes = num_linked = num_blobs = 0
    for sha256 in sorted(whose.keys() | useful):
        original = directory / "blobs" / sha256[:2] / sha256
        if not original.is_file():
            if sha256 in whose:
                raise StateError(
                    f"blob {sha256} is not there, {whose[sha256]} needs it. See lipt state check."
                )
            continue
        copy = partial / "blobs" / sha256[:2] / sha256
        make_directory(copy.parent)
        linked = link and _linked(original, copy)
        if not linked:
            _copy(original, copy)
        num_linked += linked
        num_blobs += 1
        num_bytes += copy.stat().st_size
    for folder in (partial / "blobs").glob("*"):
        sync(folder)
    return BackedUp(len(contents.runs), num_blobs, num_bytes, num_linked)


def _linked(original: Path, copy: Path) -> bool:
    try:
        os.link(original, copy)
    except OSError:  # another file system, or one without links
        return False
    return True


def _copy(original: Path, copy: Path) -> None:
    make_private_file(copy)
    shutil.copyfile(original, copy)
    sync(copy)
    if BlobName.of_file(copy).sha256 != original.name:
        raise StateError(
            f"{original} is damaged: its content has another digest. See lipt state check."
        )
