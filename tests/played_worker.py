"""A worker that a test plays itself, over real gRPC: it prunes theta* and calls it a learner."""

import hashlib
from pathlib import Path

import grpc
import torch
from safetensors.torch import load_file

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.tensor_files import Weights
from lipt.core.passes import data_proof, encode_range
from lipt.core.pretraining.pruning import masks_of_largest
from lipt.core.tasks import LearnerTask, ScoringTask
from lipt.data.dataset import Dataset
from lipt.models.encodings import encode_sparse
from lipt.v1 import worker_pb2
from lipt.worker.client import Assignment, CoordinatorClient
from lipt.worker.settings import WorkerSettings

REPORT = worker_pb2.LearnerReport(loss=1.0, train_seconds=1.0, total_seconds=1.0, bytes_received=0)


class PlayedWorker:
    """Takes learners and hands them in when the test says so; sends no heartbeat unasked."""

    def __init__(
        self,
        directory: Path,
        channel: grpc.Channel,
        name: str,
        *,
        has_data: bool = False,
        source: str | None = None,
    ) -> None:
        self.client = CoordinatorClient(channel)
        # Drawn by its name, so that the same one after a restart is the same worker.
        self.secret = hashlib.sha256(name.encode()).hexdigest()
        data = "digits" if has_data or source else None
        settings = WorkerSettings(name=name, worker_data=data, source=source)
        self.client.register(self.secret, settings, torch.device("cpu"))
        self.worker_id = self.client.worker_id
        self._store = BlobStore(directory / f"cache-{name}", max_blob_bytes=2**30)

    def take(self) -> Assignment:
        while (assignment := self.client.acquire()) is None:
            pass
        return assignment

    def weights(self, assignment: Assignment) -> Weights:
        path = Transfers(self.client.blobs).download(assignment.initial_weights, self._store)
        return load_file(path)

    def submit_range(self, assignment: Assignment, scored: Weights, data: Dataset) -> None:
        assert isinstance(assignment.task, ScoringTask)
        proof = data_proof(data, assignment.task.nonce, assignment.task.proof_ids)
        name = Transfers(self.client.blobs).upload(encode_range(scored))
        self.client.commit(assignment, [name], REPORT, data_proof=proof)

    def learner(self, assignment: Assignment, factor: float = 1.0) -> Weights:
        assert isinstance(assignment.task, LearnerTask)
        return pruned(self.weights(assignment), assignment.task.density, factor)

    def upload(self, weights: Weights) -> BlobName:
        return Transfers(self.client.blobs).upload(encode_sparse(weights))

    def commit(self, assignment: Assignment, result: BlobName) -> None:
        self.client.commit(assignment, [result], REPORT)

    def submit(self, assignment: Assignment, weights: Weights | None = None) -> None:
        learner = self.learner(assignment) if weights is None else weights
        self.commit(assignment, self.upload(learner))


def pruned(weights: Weights, density: float, factor: float = 1.0) -> Weights:
    scores = {name: tensor.abs() for name, tensor in weights.items() if tensor.ndim >= 2}
    masks = masks_of_largest(scores, density)
    return weights | {name: weights[name] * mask * factor for name, mask in masks.items()}
