"""Quota: how much uploads may take, of one peer and of all; what is not set follows the disk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from lipt.common.blobs.durable import state_errors
from lipt.coordinator.settings import StorageSettings

# The rest is for what the coordinator makes itself, and for what runs keep.
_SHARE_OF_DISK = 3


@dataclass(frozen=True)
class Quota:
    """How much uploads may take that no record names, those that are yet to arrive included."""

    max_bytes: int
    max_bytes_per_peer: int
    max_unfinished: int
    max_unfinished_per_peer: int


def resolve_quota(settings: StorageSettings, *, usable_bytes: int) -> Quota:
    """The quota of a directory.

    Args:
        settings: what the operator has set.
        usable_bytes: of the disk, what is free and what uploads take already.
    """
    max_bytes = settings.max_bytes or usable_bytes // _SHARE_OF_DISK
    return Quota(
        max_bytes=max_bytes,
        max_bytes_per_peer=min(max_bytes, settings.max_bytes_per_peer or max_bytes // 2),
        max_unfinished=settings.max_unfinished,
        max_unfinished_per_peer=min(settings.max_unfinished, settings.max_unfinished_per_peer),
    )


def free_bytes(directory: Path) -> int:
    """What this process could still write there.

    Raises:
        StateError: the disk refuses.
    """
    with state_errors(directory):
        return shutil.disk_usage(directory).free
