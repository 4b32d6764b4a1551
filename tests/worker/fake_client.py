"""A coordinator that a test plays, in place of `CoordinatorClient`: there is no network."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import grpc
import torch

from lipt.common.blobs.blob import BlobName, blob_from_proto, blob_to_proto, chunk_data, fill_chunk
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import (
    AugmentationConfig,
    AugmentationMethod,
    LearnersConfig,
    PruningMethod,
)
from lipt.common.config.settings import load_settings
from lipt.common.process import Machine
from lipt.common.rpc.channel import LongPoll, open_channel
from lipt.common.states import Divergence
from lipt.core.tasks import LearnerTask
from lipt.data.inputs.specs import ImageFormat
from lipt.v1 import blob_pb2, worker_pb2, worker_pb2_grpc
from lipt.worker.assignment import Worker, WorkerLimits
from lipt.worker.client import Assignment, CoordinatorClient
from lipt.worker.settings import WorkerSettings

TASK = LearnerTask(
    model="tests.tiny:linear",
    num_classes=10,
    image=ImageFormat(1, 8, 8, mean=(0.5,), std=(0.5,)),
    learners=LearnersConfig(num_minibatches=1, num_steps=2, batch_size=8),
    augmentation=AugmentationConfig(method=AugmentationMethod.NONE),
    pruning_method=PruningMethod.NONE,
    density=1.0,
    seed=3,
)


def make_assignment(index: int = 0, *, heartbeat_seconds: float = 3600.0) -> Assignment:
    """A learner of run r, whose blobs nobody has; heartbeats only when there is news."""
    return Assignment(
        assignment_id=f"r/{index}",
        run_id="r",
        learner_index=index,
        epoch=1,
        heartbeat_seconds=heartbeat_seconds,
        initial_weights=BlobName.of(b"theta*"),
        shard=BlobName.of(b"shard"),
        task=TASK,
    )


class _Call:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __iter__(self) -> Any:
        return iter(self._answer)

    def result(self) -> Any:
        return self._answer

    def cancel(self) -> None:
        """Nothing is left to cancel."""


class FakeBlobs:
    """The stub of a blob service for blobs of one chunk; the next calls raise `failures`."""

    def __init__(self, directory: Path) -> None:
        self.store = BlobStore(directory, max_blob_bytes=2**24)
        self.reads: list[BlobName] = []
        self.failures: list[Exception] = []
        self.WriteBlob = self

    def ReadBlob(self, request: blob_pb2.ReadBlobRequest) -> _Call:
        name = blob_from_proto(request.blob)
        self.reads.append(name)
        self._fail()
        response = blob_pb2.ReadBlobResponse()
        fill_chunk(response.chunk, 0, self.store.read_bytes(name))
        return _Call([response])

    def GetUploadStatus(self, request: blob_pb2.GetUploadStatusRequest, *, timeout: float) -> Any:
        name = blob_from_proto(request.blob)
        return blob_pb2.GetUploadStatusResponse(complete=self.store.has(name))

    def future(self, requests: Any) -> _Call:
        self._fail()
        (request,) = requests
        name = blob_from_proto(request.blob)
        stored = self.store.put_bytes(chunk_data(request.chunk, blob=name, offset_bytes=0))
        return _Call(blob_pb2.WriteBlobResponse(blob=blob_to_proto(stored)))

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


class FakeClient:
    """Answers from lists that a test fills; `refusals` are errors of the next calls, by name."""

    def __init__(self, directory: Path) -> None:
        self.blobs = FakeBlobs(directory)
        self.assignments: list[Assignment | Exception | None] = []
        self.when_idle: Callable[[], object] = lambda: None
        self.refusals: dict[str, list[Exception]] = {}
        self.worker_id = "w"
        self.idle_reason = ""
        self.waits: list[float] = []
        self.registered: list[tuple[str, str]] = []
        self.released: list[tuple[str, str, str]] = []
        self.divergences: list[Divergence | None] = []
        self.declined: list[tuple[str, str, str]] = []
        self.proofs: list[str] = []
        self.committed: list[
            tuple[str, BlobName, worker_pb2.LearnerReport, tuple[BlobName, ...]]
        ] = []
        self.beats: SimpleQueue[worker_pb2.LearnerProgress] = SimpleQueue()
        self.given_back = threading.Event()
        self.polls = LongPoll()

    @property
    def client(self) -> CoordinatorClient:
        return cast("CoordinatorClient", self)

    def register(self, instance_id: str, settings: WorkerSettings, _: torch.device) -> None:
        self._answer("register")
        self.registered.append((instance_id, settings.name))
        self.worker_id = f"worker-{len(self.registered)}"

    def acquire(self, *, wait_seconds: float) -> Assignment | None:
        self.waits.append(wait_seconds)
        if not self.assignments:
            self.when_idle()
            return None
        found = self.assignments.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def heartbeat(self, assignment: Assignment, progress: worker_pb2.LearnerProgress) -> bool:
        self.beats.put(progress)
        self._answer("heartbeat")
        return False

    def commit(
        self,
        assignment: Assignment,
        names: Sequence[BlobName],
        report: worker_pb2.LearnerReport,
        data_proof: str = "",
    ) -> None:
        self._answer("commit")
        self.proofs.append(data_proof)
        *snapshots, result = names
        self.committed.append((self.worker_id, result, report, tuple(snapshots)))

    def release(
        self,
        assignment_id: str,
        epoch: int,
        error: str = "",
        *,
        divergence: Divergence | None = None,
        over_limits: bool = False,
    ) -> None:
        self.divergences.append(divergence)
        given_back = self.declined if over_limits else self.released
        given_back.append((self.worker_id, assignment_id, error))
        self.given_back.set()
        self._answer("release")

    def _answer(self, call: str) -> None:
        if refusals := self.refusals.get(call):
            raise refusals.pop(0)


@contextmanager
def serving(servicer: Any) -> Iterator[grpc.Channel]:
    server = grpc.server(ThreadPoolExecutor(2))
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(None).wait()


def make_worker(fake: FakeClient, cache: BlobStore, **settings: Any) -> Worker:
    flags = {"allow_modules": ("tests.tiny",), **settings}
    made = load_settings(WorkerSettings, config=None, flags=flags)
    cpu = torch.device("cpu")
    limits = WorkerLimits(made, Machine(num_cores=3, memory_bytes=10 * 2**30), cpu)
    return Worker(made, fake.client, cpu, limits, cache, pause=lambda _: None)
