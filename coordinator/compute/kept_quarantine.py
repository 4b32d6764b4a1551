"""Kept quarantine: the same images are left out as long as runs of a data set go on.

What is computed counts images by their places among those that are used. A repaired image would
move all behind it, so it stays out; one that broke since then is refused, as where none may be.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from lipt.common.blobs.durable import make_directory, publish, temporary_file, write_all
from lipt.common.data import Dataset
from lipt.common.errors import DataError, StateError

logger = logging.getLogger(__name__)

_MOST_NAMED = 20


def with_kept_quarantine(dataset: Dataset, folder: Path) -> Dataset:
    """The data set without the images that were left out when it was first served from here.

    Args:
        dataset: as it was opened.
        folder: where that is kept, for each fingerprint.

    Raises:
        DataError: other images than those cannot be used.
        StateError: what was kept cannot be read, or kept.
    """
    path = folder / f"{dataset.fingerprint}.json"
    try:
        kept = _read(path)
    except (OSError, ValueError) as error:
        raise StateError(
            f"which images of {dataset.source} are left out is kept in {path}, which cannot be "
            f"used: {error}. Restore it from a backup of the state directory."
        ) from error
    if kept is None:
        _keep(path, dataset)
        return dataset
    broken = sorted(set(dataset.quarantined) - set(kept))
    if broken:
        named = ", ".join(map(str, broken[:_MOST_NAMED]))
        raise DataError(
            f"{len(broken)} images of {dataset.source} cannot be used that could when runs of this "
            f"state directory were made: {named}. Restore them, or begin with another state "
            "directory."
        )
    return replace(dataset, quarantined=kept)


def _read(path: Path) -> tuple[int, ...] | None:
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise ValueError("it holds no list of ids")
    return tuple(ids)


def _keep(path: Path, dataset: Dataset) -> None:
    try:
        _write(path, dataset.quarantined)
    except OSError as error:
        if dataset.quarantined:
            raise StateError(
                f"which images of {dataset.source} are left out cannot be kept in {path}: {error}. "
                "Make room, and start again."
            ) from error
        # A full disk is no reason not to serve what is whole.
        logger.warning("that all of %s can be used is not noted: %s", dataset.source, error)


def _write(path: Path, ids: tuple[int, ...]) -> None:
    make_directory(path.parent)
    with temporary_file(path.parent) as (file, temporary):
        write_all(file, json.dumps(ids).encode())
        publish(file, temporary, path)
