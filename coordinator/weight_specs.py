"""The tensors of each run's theta*, read once from its file's header."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.weights.files import read_specs
from lipt.common.weights.specs import TensorSpec
from lipt.coordinator.records import RunRecord


class WeightSpecs:
    """What the learners of a run must look like."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._known: dict[BlobName, Mapping[str, TensorSpec]] = {}

    def path(self, name: BlobName) -> Path:
        """The file of a stored blob.

        Raises:
            UnknownBlobError: it is not stored.
        """
        return self._blobs.path(name)

    async def of_run(self, run: RunRecord) -> Mapping[str, TensorSpec]:
        """Names, shapes and dtypes of the run's theta*."""
        name = run.initial_weights
        if name is None:
            raise ValueError(f"run {run.run_id} has no initial weights yet")
        if name not in self._known:
            path = self._blobs.path(name)
            self._known[name] = await asyncio.to_thread(read_specs, path)
        return self._known[name]
