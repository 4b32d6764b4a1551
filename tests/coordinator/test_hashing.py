"""A learner's blob on its way from the worker to the soup, and how often it is hashed."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.config.run_config import LearnersConfig, PruningConfig, RunConfig, SoupConfig
from lipt.common.errors import UnknownBlobError
from lipt.common.models import build_model
from lipt.common.rpc.channel import open_channel
from lipt.common.states import LearnerState
from lipt.common.weights.codec import encode_sparse
from lipt.common.weights.files import pack
from lipt.common.weights.specs import Weights
from lipt.coordinator.compute.jobs.pretraining import MakeSoup, SoupResult
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.intake import LearnerIntake
from lipt.coordinator.rpc.blobs import BlobService
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.runs.transitions import LearnerResult
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from lipt.v1 import blob_pb2_grpc
from tests.blob_files import flip_a_bit
from tests.digits import digits_context
from tests.serving import serving
from tests.uploading import uploads_into

MakeRun = Callable[..., RunRecord]
CONFIG = RunConfig(
    model="resnet8",
    learners=LearnersConfig(num_learners=2, batch_size=16),
    pruning=PruningConfig(method="none"),  # type: ignore[arg-type]
    soup=SoupConfig(num_alphas=2, reestimate_batch_norm=False),
)


class Bench:
    """A coordinator's intake, its blobs on a real port, and a run of two learners."""

    def __init__(self, directory: Path) -> None:
        self.database = Database.open(directory / "lipt.db")
        self.blobs = BlobStore(directory, max_blob_bytes=2**30)
        self.runs = RunStore(self.database)
        self.dispatcher = Dispatcher(
            self.runs, lease_seconds=30.0, clock=lambda: 0.0, wall_clock=lambda: 0.0
        )
        self.intake = LearnerIntake(self.dispatcher, self.blobs)
        self.address = ""
        self.context = digits_context(directory)

    async def begin(self, run: RunRecord) -> Weights:
        theta = build_model(
            "resnet8", num_classes=10, inputs=self.context.dataset.inputs, seed=0
        ).state_dict()
        initial = self.blobs.put_bytes(pack(theta))
        await self.runs.add(run.changed(config=CONFIG, initial_weights=initial))
        return theta

    async def upload(self, content: bytes) -> BlobName:
        with open_channel(self.address) as channel:
            stub = blob_pb2_grpc.BlobServiceStub(channel)
            return await asyncio.to_thread(Transfers(stub).upload, content)

    async def commit(self, name: BlobName) -> None:
        worker = self.dispatcher.workers.register(
            name.sha256, name="w", device="cpu", versions={}, allowed_modules=()
        )
        granted = await self.dispatcher.acquire(worker.worker_id, wait_seconds=0)
        assert granted is not None
        learner = granted[1]
        result = LearnerResult(name, loss=1.0, train_seconds=1.0, bytes_received=0, snapshots=())
        key = AssignmentKey("r", learner.index)
        await self.intake.take(worker.worker_id, key, learner.epoch, result)

    def soup(self) -> SoupResult:
        run = self.runs.find("r")
        assert run.inputs is not None
        assert run.initial_weights is not None
        made = MakeSoup(run.config, run.inputs, run.initial_weights, run.results).run(self.context)
        assert isinstance(made, SoupResult)
        return made


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    service = BlobService(bench.blobs, uploads_into(bench.blobs))
    async with serving((blob_pb2_grpc.add_BlobServiceServicer_to_server, service)) as address:
        bench.address = address
        yield bench
    await bench.database.close()


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each SHA-256 digest was computed, by its hexadecimal digits."""
    counted: Counter[str] = Counter()

    class Counting:
        def __init__(self, digest: Any) -> None:
            self._digest = digest

        def __getattr__(self, name: str) -> Any:
            return getattr(self._digest, name)

        def hexdigest(self) -> str:
            counted[self._digest.hexdigest()] += 1
            return str(self._digest.hexdigest())

    sha256, file_digest = hashlib.sha256, hashlib.file_digest
    monkeypatch.setattr(hashlib, "sha256", lambda data=b"": Counting(sha256(data)))
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, kind: Counting(file_digest(file, kind))
    )
    return counted


def learners_of(theta: Weights) -> list[bytes]:
    return [
        encode_sparse({name: tensor * factor for name, tensor in theta.items()})
        for factor in (2, 3)
    ]


async def test_learner_is_hashed_once_as_it_arrives_and_each_time_the_soup_opens_it(
    bench: Bench, make_run: MakeRun, digests: Counter[str]
) -> None:
    contents = learners_of(await bench.begin(make_run(num_learners=2)))
    names = [await bench.upload(content) for content in contents]
    # The worker names what it sends; the coordinator compares what comes.
    assert [digests[name.sha256] for name in names] == [2, 2]
    for name in names:
        await bench.commit(name)
    assert [digests[name.sha256] for name in names] == [2, 2]
    bench.soup()
    # Once before it is scored, once before it is mixed: both are read from the disk.
    assert [digests[name.sha256] for name in names] == [4, 4]


async def test_result_that_was_here_before_is_hashed_when_it_is_committed(
    bench: Bench, make_run: MakeRun, digests: Counter[str]
) -> None:
    first, _ = learners_of(await bench.begin(make_run(num_learners=2)))
    name = await bench.upload(first)
    await bench.commit(name)
    before = digests[name.sha256]
    assert await bench.upload(first) == name
    await bench.commit(name)
    # Named by the worker; nothing is sent; compared at the commit.
    assert digests[name.sha256] - before == 2


async def test_result_that_was_here_before_and_is_damaged_is_asked_for_again(
    bench: Bench, make_run: MakeRun
) -> None:
    first, _ = learners_of(await bench.begin(make_run(num_learners=2)))
    name = await bench.upload(first)
    await bench.commit(name)
    flip_a_bit(bench.blobs.path(name), -1000)
    assert await bench.upload(first) == name
    with pytest.raises(UnknownBlobError):
        await bench.commit(name)
    assert bench.runs.find("r").learners[1].state is LearnerState.LEASED
    assert await bench.upload(first) == name
    assert bench.blobs.read_bytes(name) == first


async def test_disk_that_changes_a_result_between_its_arrival_and_its_commit_is_not_the_worker(
    bench: Bench, make_run: MakeRun
) -> None:
    first, _ = learners_of(await bench.begin(make_run(num_learners=2)))
    name = await bench.upload(first)
    # Of the header: it cannot be read any more.
    flip_a_bit(bench.blobs.path(name), 20)
    with pytest.raises(UnknownBlobError):
        await bench.commit(name)
    assert bench.runs.find("r").learners[0].state is LearnerState.LEASED
    assert not bench.blobs.has(name)
