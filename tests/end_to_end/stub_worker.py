"""A worker that a test plays itself, over real gRPC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import torch

from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import download, upload
from lipt.common.rpc.channel import open_channel
from lipt.common.weights.files import read_specs, read_weights
from lipt.common.weights.sparse import encode_sparse
from lipt.common.weights.specs import Weights
from lipt.trainer.client.client import Client
from lipt.worker.client import Assignment, CoordinatorClient, Report
from lipt.worker.pruning.masks import masks_of_largest
from tests.end_to_end.cluster import Cluster

REPORT = Report(loss=1.0, train_seconds=1.0, total_seconds=1.0, bytes_received=0)


class StubWorker:
    """Takes learners, and hands in what the test gives it."""

    def __init__(self, directory: Path, channel: grpc.Channel, name: str) -> None:
        self.coordinator = CoordinatorClient(channel)
        self.worker_id = self.coordinator.register(
            name, name=name, device="cpu", versions={}, allowed_modules=()
        )
        self._store = BlobStore(directory / f"cache-{name}", max_blob_bytes=2**30)

    def take(self) -> Assignment:
        """The next learner."""
        while (assignment := self.coordinator.acquire(self.worker_id)) is None:
            pass
        return assignment

    def initial_weights(self, assignment: Assignment) -> Weights:
        """theta*."""
        path = download(self.coordinator.blobs, assignment.initial_weights, self._store)
        return read_weights(path, like=read_specs(path), max_bytes=2**30)

    def learner(self, assignment: Assignment) -> Weights:
        """A learner that is as good as any: theta*, pruned as its task says."""
        weights = self.initial_weights(assignment)
        scores = {name: tensor.abs() for name, tensor in weights.items() if tensor.ndim >= 2}
        masks = masks_of_largest(scores, assignment.task.density)
        return weights | {name: weights[name] * mask for name, mask in masks.items()}

    def submit(self, assignment: Assignment, weights: Weights, report: Report = REPORT) -> None:
        """Upload and commit."""
        name = upload(self.coordinator.blobs, encode_sparse(weights))
        self.coordinator.commit(self.worker_id, assignment, name, report)


def first_kernel(weights: Weights) -> str:
    """The name of a convolution's weights."""
    return next(name for name, tensor in weights.items() if tensor.ndim == 4)


def scaled(weights: Weights, factor: float) -> Weights:
    """All floating-point values, multiplied."""
    return {
        name: tensor * factor if torch.is_floating_point(tensor) else tensor
        for name, tensor in weights.items()
    }


@contextmanager
def one_of_two_in(
    cluster: Cluster, small_run: Mapping[str, Any]
) -> Iterator[tuple[Client, str, StubWorker]]:
    """A client, a run of two learners of which learner 0 is in, and the worker that did it."""
    learners = {**small_run["learners"], "num_learners": 2}
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run({**small_run, "learners": learners})
        worker = StubWorker(cluster.directory, channel, "w")
        first = worker.take()
        assert first.learner_index == 0
        worker.submit(first, worker.learner(first))
        yield client, run.run_id, worker
