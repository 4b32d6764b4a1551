"""A worker that a test plays itself, over real gRPC: it prunes theta* and calls it a learner."""

from __future__ import annotations

from pathlib import Path

import grpc

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import download, upload
from lipt.common.weights.files import read_specs, read_weights
from lipt.common.weights.sparse import encode_sparse
from lipt.common.weights.specs import Weights
from lipt.worker.client import Assignment, CoordinatorClient, Report
from lipt.worker.pruning.masks import masks_of_largest

REPORT = Report(loss=1.0, train_seconds=1.0, total_seconds=1.0, bytes_received=0)


class StandIn:
    """Takes learners and hands them in when the test says so; sends no heartbeat unasked."""

    def __init__(self, directory: Path, channel: grpc.Channel, name: str) -> None:
        self.coordinator = CoordinatorClient(channel)
        self._store = BlobStore(directory / f"cache-{name}", max_blob_bytes=2**30)
        self.worker_id = self.coordinator.register(
            name, name=name, device="cpu", versions={}, allowed_modules=()
        )

    def take(self) -> Assignment:
        """The next learner, however long that takes."""
        while (assignment := self.coordinator.acquire(self.worker_id)) is None:
            pass
        return assignment

    def learner(self, assignment: Assignment, factor: float = 1.0) -> BlobName:
        """Upload theta*, pruned as the task says and scaled."""
        path = download(self.coordinator.blobs, assignment.initial_weights, self._store)
        weights = read_weights(path, like=read_specs(path), max_bytes=2**30)
        return upload(self.coordinator.blobs, encode_sparse(pruned(weights, assignment, factor)))

    def commit(self, assignment: Assignment, result: BlobName) -> None:
        """Hand in what is uploaded."""
        self.coordinator.commit(self.worker_id, assignment, result, REPORT)


def pruned(weights: Weights, assignment: Assignment, factor: float) -> Weights:
    """A learner as good as any, by its names, shapes and density."""
    scores = {name: tensor.abs() for name, tensor in weights.items() if tensor.ndim >= 2}
    masks = masks_of_largest(scores, assignment.task.density)
    return weights | {name: weights[name] * mask * factor for name, mask in masks.items()}
