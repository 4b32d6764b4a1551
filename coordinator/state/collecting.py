"""Garbage collection: remove what no record needs (shards of ended runs, cut uploads, ...)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lipt.common.blobs.durable import remove_stale_temporaries, state_errors
from lipt.common.errors import StateError
from lipt.coordinator.state.contents import read_contents
from lipt.coordinator.state.lock import StateLock
from lipt.coordinator.state.needs import needed_blobs, useful_digests


@dataclass(frozen=True)
class Collected:
    """What was removed, or would be, and what was spared for its youth."""

    num_files: int
    num_bytes: int
    num_young: int


def collect_garbage(
    directory: Path, *, min_age_seconds: float, now: float, dry_run: bool = False
) -> Collected:
    """Delete the files of a state directory that no record needs.

    The directory is locked meanwhile: a coordinator that serves it makes this fail. What
    a peer uploaded a moment ago has no record yet, and its peer comes back once a
    coordinator is up: so young files are spared.

    Args:
        directory: the state directory.
        min_age_seconds: how old a file has to be.
        now: seconds since 1970.
        dry_run: delete nothing.

    Raises:
        StateError: there is no state, it is in use, or some of its records cannot be
            read, so that nobody knows what they need.
    """
    read_contents(directory)  # Before the lock, which makes a directory that is missing.
    try:
        lock = StateLock(directory)
    except StateError as error:
        raise StateError(
            f"{error} While a coordinator serves it collects by itself: what nobody uses for "
            "storage.unused_hours goes."
        ) from None
    try:
        lock.describe("collecting garbage")
        contents = read_contents(directory)
        if contents.problems:
            raise StateError(
                f"nothing was removed, for what is needed is not known: {contents.problems[0]}. "
                "See lipt state check, and restore a backup."
            )
        needed = {need.blob.sha256 for need in needed_blobs(contents)}
        needed |= useful_digests(contents)
        with state_errors(directory):
            return _collect(directory, needed, now - min_age_seconds, dry_run=dry_run)
    finally:
        lock.release()


def _collect(directory: Path, needed: set[str], before: float, *, dry_run: bool) -> Collected:
    num_files = num_bytes = num_young = 0
    if not dry_run:
        remove_stale_temporaries(directory / "uploads")
    for path in _unneeded(directory, needed):
        stat = path.stat()
        if stat.st_mtime > before:
            num_young += 1
            continue
        num_files += 1
        num_bytes += stat.st_size
        if not dry_run:
            path.unlink()
    return Collected(num_files, num_bytes, num_young)


def _unneeded(directory: Path, needed: set[str]) -> Iterator[Path]:
    for path in sorted((directory / "blobs").glob("*/*")):
        if path.name not in needed:
            yield path
    yield from sorted((directory / "uploads").glob("*.part"))
    # What a compute process left that was killed while it wrote its cache.
    yield from sorted((directory / "signals").rglob("*.tmp*"))
