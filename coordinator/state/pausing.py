"""Pausing collection: who reads all blobs of a served directory finds what its records name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lipt.common.blobs.durable import directory_lock


@contextmanager
def collection_paused(directory: Path) -> Iterator[None]:
    """Let no coordinator remove blobs of a state directory during the block."""
    blobs = directory / "blobs"
    # Where there are none, the directory of all will do: nobody removes anything.
    with directory_lock(blobs if blobs.is_dir() else directory, exclusive=False):
        yield


@contextmanager
def collection_allowed(directory: Path) -> Iterator[bool]:
    """Whether blobs may be removed during the block: nobody reads all of them now."""
    with directory_lock(directory / "blobs", exclusive=True, wait=False) as allowed:
        yield allowed
