"""What the learners of each run are compared with: its theta*, read once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.weights.files import read_specs, read_weights
from lipt.common.weights.specs import TensorSpec
from lipt.coordinator.dispatch.learner_check import trained_norm
from lipt.coordinator.state.records import RunRecord


@dataclass(frozen=True)
class Reference:
    """theta* without its values: its tensors by name, and the length of what is trained in it."""

    specs: dict[str, TensorSpec]
    norm: float


class WeightSpecs:
    """What the learners of a run must look like."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._known: dict[BlobName, Reference] = {}
        self._reading = asyncio.Lock()

    def whole_path(self, name: BlobName) -> Path:
        """The file of a blob that a worker says it has stored, compared with its digest.

        Raises:
            UnknownBlobError: it is not stored, or the disk has changed it since: it is
                removed then, and can be stored again.
        """
        self._blobs.keep_if_whole(name)
        return self._blobs.path(name)

    async def of_run(self, run: RunRecord) -> Reference:
        """The run's theta*."""
        name = run.initial_weights
        if name is None:
            raise ValueError(f"run {run.run_id} has no initial weights yet")
        # One at a time: many workers may commit at once, and it is read once for all.
        async with self._reading:
            if name not in self._known:
                self._known[name] = await asyncio.to_thread(self._read, name)
        return self._known[name]

    def _read(self, name: BlobName) -> Reference:
        path = self._blobs.path(name)
        specs = read_specs(path)
        weights = read_weights(path, like=specs, max_bytes=self._blobs.max_blob_bytes)
        return Reference(specs, trained_norm(weights))
